"""ImageNet (ILSVRC2012) as it is downloaded, to shards of records as the 2016 program wrote them.

    python scripts/build_imagenet_data.py --source=DOWNLOADS --output_directory=records

DOWNLOADS holds ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar (read where they lie: nothing is unpacked), or the
folders train and val, or Kaggle's tree ILSVRC; and the devkit, LOC_val_solution.csv or a list of 50,000 labels. A run
that was ended goes on when it is started again.

Exit code: 0 all files are in the records, 3 some were no readable images and are listed on stderr, 1 no set was put in
place, 2 a flag is wrong.
"""

import os
import signal
import sys

import common
from inception_mg import checks, config


def main() -> int:
    build = common.from_flags(config.ImagenetConfig)
    checks.check_imagenet(build)
    # So that `kill` ends the converting processes too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Imported here: the converting processes import this file again, and need no TensorFlow.
    with common.quiet_import():
        from inception_mg.data import imagenet_builder, unfinished
    try:
        reports = imagenet_builder.build_imagenet(build)
    finally:
        folder = os.path.join(build.output_directory, unfinished.FOLDER)
        if done := len(unfinished.finished(folder)):
            print(f'{done} shards are finished and kept in {folder}: the same command goes on from there',
                  file=sys.stderr)
    for report in reports:
        print(common.subset_line(report))
    print(f'{build.output_directory}: wrote labels.txt and dataset.json')
    return 3 if any(report.skipped for report in reports) else 0


if __name__ == '__main__':
    common.define_flags(config.ImagenetConfig)
    common.run(main)
