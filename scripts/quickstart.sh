#!/usr/bin/env bash
# The main job from nothing: images -> records -> a narrow Inception v3 on two towers -> precision@1.
# With --cluster the training is that of a cluster on this machine: 2 ps, a chief and a worker.
# Everything it writes is in quickstart_out (or the folder given as argument); run again, it goes on
# from there.
set -euo pipefail
cluster=
if [ "${1:-}" = --cluster ]; then cluster=1; shift; fi
out=$(mkdir -p "${1:-$(dirname "$0")/../quickstart_out}" && cd "${1:-$(dirname "$0")/../quickstart_out}" && pwd)
cd "$(dirname "$0")/.."
source scripts/venv.sh
make_venv
started=$SECONDS
towers=2
if command -v nvidia-smi >/dev/null && [ "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')" = 1 ]; then
    towers=1  # A tower per GPU: with one GPU there is one tower.
fi

step() { echo; echo "== $*"; }

step "1. images: crops of nine photographs"
if [ ! -d "$out/images" ]; then
    scratch=$(mktemp -d "$out/.images-XXXXXX")
    "$PYTHON" scripts/make_demo_data.py --output_directory="$scratch/images"
    mv "$scratch/images" "$out/images"
    rmdir "$scratch"
fi

step "2. records: a folder per class -> shards"
if [ ! -f "$out/records/dataset.json" ]; then
    mkdir -p "$out/records"
    "$PYTHON" scripts/build_image_data.py --train_directory="$out/images/train" \
        --validation_directory="$out/images/validation" --output_directory="$out/records" --train_shards=4
fi

# Decays for a run of a few hundred steps, which are also too few to learn from distorted colours
# (--nodistort); the defaults are those of a long run.
training=(--data_dir="$out/records" --width=0.25 --image_size=75 --num_epochs_per_decay=5
    --learning_rate_decay_factor=0.7 --nodistort --batch_norm_decay=0.9 --moving_average_decay=0.98
    --log_every_steps=25)
if [ $cluster ]; then
    step "3. training: variables on 2 ps, a chief and a worker that average their gradients"
    train_dir=$out/train_cluster
    "$PYTHON" scripts/launch_local.py --num_ps=2 --num_workers=2 -- "${training[@]}" --train_dir="$train_dir" \
        --sync --batch_size=64 --initial_learning_rate=0.1 --max_steps=200
else
    step "3. training: $towers tower(s), variables on the CPU"
    train_dir=$out/train
    "$PYTHON" scripts/train.py "${training[@]}" --train_dir="$train_dir" --num_gpus=$towers --batch_size=128 \
        --max_steps=350
fi

step "4. evaluation: the moving averages of the weights on every validation image"
"$PYTHON" scripts/evaluate.py --data_dir="$out/records" --checkpoint_dir="$train_dir" --run_once \
    --width=0.25 --image_size=75 | tee "$out/evaluation.txt"

step "done in $((SECONDS - started)) s"
"$PYTHON" -c "
import json
result = json.loads(open('$out/evaluation.txt').read().splitlines()[-1])
print(f'precision@1 = {result[\"precision@1\"]:.3f} on {result[\"images\"]} images that it never saw')"
cat <<TEXT
Next:
  first           source .venv/bin/activate
  curves          .venv/bin/tensorboard --logdir $out
  your images     a folder per class, then steps 2 to 4 with your folders (README.md, "Your own images")
  how it works    docs/architecture.md
TEXT
