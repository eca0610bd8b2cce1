"""Folders of images, one per class, to shards of records; or a description of records made elsewhere.

    python scripts/build_image_data.py --train_directory=photos/train \
        --validation_directory=photos/validation --output_directory=records
    python scripts/build_image_data.py --train_directory=photos --validation_split=0.15 --output_directory=records
    python scripts/build_image_data.py --image_list=photos.csv --output_directory=records

Exit code: 0 all files are in the records, 3 some were no readable images and are listed on stderr,
1 nothing was written, 2 a flag is wrong.
"""

import signal
import sys

import common
from inception_mg import checks, config


def main() -> int:
    return run(common.from_flags(config.BuildConfig))


def run(build: config.BuildConfig) -> int:
    """Writes or describes records as the settings say; returns the exit code."""
    checks.check_build(build)
    # So that `kill` leaves no half-written files either.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return describe(build.output_directory) if build.describe else write(build)


def describe(output_directory: str) -> int:
    with common.quiet_import():
        from inception_mg.data import dataset_describe
    info = dataset_describe.describe_dataset(output_directory)
    for subset, images in info.counts.items():
        print(f'{subset}: {images} images in {info.shards[subset]} shards')
    first, count = info.records.first_label, len(info.classes)
    theirs = '' if first == 1 else f', which are {first} to {count + first - 1} in the records'
    print(f'{output_directory}: {count} classes, labels 1 to {count}{theirs}; wrote dataset.json')
    return 0


def write(build: config.BuildConfig) -> int:
    # Imported here: the converting processes import this file again, and need no TensorFlow.
    with common.quiet_import():
        from inception_mg.data import dataset_builder, dataset_info
    reports = dataset_builder.build_dataset(build)
    for report in reports:
        print(common.subset_line(report))
    classes = len(dataset_info.read_dataset_info(build.output_directory).classes)
    print(f'{build.output_directory}: {classes} classes, labels 1 to {classes} (0 is the background); '
          'wrote labels.txt and dataset.json')
    return 3 if any(report.skipped for report in reports) else 0


if __name__ == '__main__':
    common.define_flags(config.BuildConfig)
    common.run(main)
