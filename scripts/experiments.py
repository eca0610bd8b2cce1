"""Runs the well-known claims about distributed training: a table and a figure each.

    python scripts/experiments.py --output_directory=DIR                            # All eight, in ten minutes.
    python scripts/experiments.py --output_directory=DIR --only=split_gain,backups   # Some of them.

Writes DIR/NAME.png for each and all tables in DIR/experiments.json. docs/experiments.md shows and explains them. What
this machine is too small for is emulated by waiting, and every table and figure says so.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import common
from inception_mg import checks, config
from inception_mg.data.progress import note
from inception_mg.errors import UserError
from inception_mg.files import write_text
from inception_mg.report import plots

SCRIPTS = pathlib.Path(__file__).resolve().parent


def main() -> int:
    options = common.from_flags(config.ExperimentsConfig)
    checks.check_experiments(options)
    output = pathlib.Path(options.output_directory).resolve()
    scratch = output / 'scratch'
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'--output_directory={options.output_directory}: {error.strerror}') from None
    plots.pyplot()  # Refuses now, not after the first experiment, if matplotlib is missing.
    with common.quiet_import():
        from dist.experiments.catalogue import CATALOGUE
        from dist.experiments.result import Request
    names = [name.strip() for name in options.only.split(',') if name.strip()] or list(CATALOGUE)
    data_dir = options.data_dir
    if not data_dir and any(CATALOGUE[name].needs_data for name in names):
        data_dir = demo_records(output / 'demo')
    request = Request(options.full, data_dir, str(scratch))
    for number, name in enumerate(names):
        left = sum(CATALOGUE[other].seconds for other in names[number:])
        note(f'experiment {number + 1} of {len(names)}, {name}' + (
            '' if options.full else f': about {CATALOGUE[name].seconds} s, with those after it {left} s'))
        begun = time.monotonic()
        result = CATALOGUE[name].run(request)
        plots.save(result.figure, str(output / f'{name}.png'))
        keep(output / 'experiments.json', name, {'full': options.full, 'seconds': round(time.monotonic() - begun, 1),
                                                 **result.values()})
        print('\n'.join(['', f'## {name}', '', *result.lines(), '', f'{output / name}.png', '']))
    return 0


def keep(path: pathlib.Path, name: str, values: dict) -> None:
    """Puts one experiment's values among those that are in the file already."""
    found = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    write_text(str(path), json.dumps({**found, name: values}, indent=1) + '\n')


def demo_records(folder: pathlib.Path) -> str:
    """Makes the photographs of make_demo_data.py and records of them, unless they are there; returns the records'
    folder."""
    from inception_mg.config import BuildConfig
    from inception_mg.data.dataset_builder import build_dataset
    images, records = folder / 'images', folder / 'records'
    if not (records / 'dataset.json').exists():
        records.mkdir(parents=True, exist_ok=True)
        if not images.exists() and subprocess.run(
                [sys.executable, str(SCRIPTS / 'make_demo_data.py'), f'--output_directory={images}']).returncode:
            raise UserError('the demo images could not be made: give --data_dir')
        build_dataset(BuildConfig(train_directory=str(images / 'train'), output_directory=str(records), train_shards=4,
                                  validation_directory=str(images / 'validation')))
    return str(records)


if __name__ == '__main__':
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', '-1')  # Devices of the CPU are what the experiments emulate with.
    common.define_flags(config.ExperimentsConfig)
    common.run_task(main)
