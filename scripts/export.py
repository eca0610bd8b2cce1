"""Exports a checkpoint for serving: the averaged weights in an inference graph, with the names of the classes.

    python scripts/export.py --checkpoint_dir=TRAIN_DIR --export_dir=MODEL/1 [--compute_dtype=bfloat16]
    python scripts/export.py --checkpoint_dir=TRAIN_DIR --export_dir=LITE --format=tflite --quantize=int8 --data_dir=DIR
    python scripts/export.py --checkpoint_dir=TRAIN_DIR --export_dir=KERAS --format=keras      # or onnx, frozen_graph

TRAIN_DIR may also be the best checkpoint that an evaluator kept (TRAIN_DIR/eval/best) or a single checkpoint. Its
model.json says width, image size and classes; without it give --width, --image_size and --data_dir. The SavedModel
takes encoded images of any size (JPEG, PNG, GIF, BMP) as `image_bytes`, or by its signatures `images` and
`unit_images` float images in [-1, 1] and [0, 1]. docs/serving.md has the formats and how each is used. Exit codes: 0, 2
for wrong flags, 1 otherwise.
"""

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config


def main() -> int:
    settings = common.from_flags(config.ExportConfig)
    data, model = common.from_flags(config.DataConfig), common.from_flags(config.ModelConfig)
    checks.check_export(settings)
    checks.check_data(data, model.model)
    checks.check_model(model)
    with common.quiet_import():
        from inception_mg.serving.export import export
    export(data, model, settings, chosen=common.given_flags())
    return 0


if __name__ == '__main__':
    common.define_flags(config.ExportConfig)
    common.define_flags(config.DataConfig, only=('data_dir', 'image_size'))
    common.define_flags(config.ModelConfig, only=('width',))
    common.run(main)
