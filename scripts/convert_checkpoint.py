"""Turns trained weights of the 2016 program, of TF-slim or of Keras into a checkpoint for these programs.

    python scripts/convert_checkpoint.py --input=inception_v3.ckpt --output_directory=DIR

--input may be a checkpoint, its folder, or a .h5, .weights.h5 or .keras file. Training takes all of them without
this step; evaluate.py and export.py take the converted one. Exit codes: 0, 2 for wrong flags, 1 otherwise.
"""

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config


def main() -> int:
    conversion = common.from_flags(config.ConvertConfig)
    checks.check_convert(conversion)
    with common.quiet_import():
        from inception_mg.weights.convert import convert
    convert(conversion)
    return 0


if __name__ == '__main__':
    common.define_flags(config.ConvertConfig)
    common.run(main)
