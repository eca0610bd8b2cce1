#!/usr/bin/env bash
# Builds a wheel, installs it into an empty environment, and tries its commands in an empty folder: records, two steps,
# a cluster of either kind, evaluation, export, classification. PYTHON3=python3.10 scripts/try_wheel.sh tries another Python,
# CONSTRAINTS=FILE other versions than those of constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON3:-python3}" -m venv "$place/env"
"$place/env/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$place" "$root"
"$place/env/bin/python" -m pip install --quiet --constraint "${CONSTRAINTS:-constraints.txt}" \
    "inception-mg[demo] @ file://$(ls "$place"/*.whl)"
mkdir "$place/empty"
cd "$place/empty"
unset PYTHONPATH
export PATH=$place/env/bin:$PATH
inception-train --version
inception-make-demo-data --output_directory=images
inception-build-records --train_directory=images/train --validation_directory=images/validation --output_directory=records
steps="--data_dir=records --width=0.05 --image_size=75 --batch_size=4 --max_steps=2 --log_every_steps=1"
# shellcheck disable=SC2086
{
    inception-train $steps --train_dir=run
    inception-launch --num_ps=1 --num_workers=2 -- $steps --train_dir=run2
    inception-launch --in_graph --num_ps=1 --num_workers=2 -- $steps --train_dir=run3
}
inception-evaluate --checkpoint_dir=run --run_once --eval_dir=eval
inception-export --checkpoint_dir=run --export_dir=model
inception-classify model images/validation
inception-plan --published
echo "the wheel works with $(python --version)"
