"""Measures speed on this machine: every way of training, what bounds it, and what others offer for the same work.

    python scripts/benchmark.py --json=figures.json --png=figures.png
    python scripts/benchmark.py --compute_dtype=bfloat16 --full
    python scripts/benchmark.py --only=one_device,keras,matmul
    python scripts/benchmark.py --peer=keras,mirrored

Each contender is a process of its own, or a small cluster. They take turns, and what counts are the ratios of turns
side by side, not the seconds. --batch_size is that of one process: two towers share it, two workers have one each.
docs/benchmark.md says what each contender does and how to read the table.
"""

import dataclasses
import os
import pathlib
import signal
import sys
import tempfile

import common
from dist.benchmark import figures, groups
from dist.benchmark.driver import Driver, Found
from inception_mg import checks, config
from inception_mg.errors import EXIT_SIGTERM, UserError
from inception_mg.files import write_text

FULL = {'image_size': 299, 'batch_size': 32, 'rounds': 9}  # --full, unless their own flags say otherwise.
START_GOAL = 12.0  # Seconds, on two cores.


def main() -> int:
    settings, data, model = (_full(common.from_flags(each)) for each in (
        config.BenchmarkConfig, config.DataConfig, config.ModelConfig))
    checks.check_benchmark(settings)
    checks.check_data(data)
    checks.check_model(model)
    names = groups.chosen_names(settings.only, settings.peer, model.compute_dtype)
    if settings.png:
        _require_matplotlib()
    if model.width != 1 and any(name in groups.OF_WIDTH_1 for name in names):
        print(f'note: ours has width {model.width:g}, and the network of Keras always has width 1')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_SIGTERM))  # So that the contenders are ended, too.
    with tempfile.TemporaryDirectory(prefix='benchmark_') as folder:
        read = data
        if not data.data_dir and any(name in groups.FROM_RECORDS for name in names):
            read = dataclasses.replace(data, data_dir=_made_up_records(pathlib.Path(folder)))
        # The contenders take their turns; on GPUs each takes the memory that it needs, not all.
        environ = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
        driver = Driver([*_as_flags(read), *_as_flags(model)], settings.rounds, settings.lap_seconds,
                        pathlib.Path(folder), environ | {'TF_FORCE_GPU_ALLOW_GROWTH': 'true'})
        found = driver.run(groups.groups_of(names), names, (3 if settings.full else 1) if groups.START in names else 0)
    report = make_report(found, settings, data, model)
    print('\n'.join(['', *report.lines()]))
    if settings.json:
        write_text(settings.json, report.as_json())
    if settings.png:
        figures.draw(report, settings.png)
    return 1 if found.failed else 0


def make_report(found: Found, settings: config.BenchmarkConfig, data: config.DataConfig, model: config.ModelConfig
                ) -> figures.Report:
    """What was found, with the settings under which."""
    title = (f'Inception v3 of width {model.width:g}, {data.image_size} x {data.image_size}, batch {data.batch_size}, '
             f'{model.compute_dtype}, {settings.rounds} rounds')
    return figures.Report(
        title, figures.machine(), {**vars(data), **vars(model), **vars(settings)},
        figures.figures(found.laps, found.infos),
        figures.comparisons(found.laps, groups.pairs_for(model.compute_dtype)), found.start_seconds, START_GOAL,
        found.failed, [name for names in groups.PEERS.values() for name in names], found.laps)


def _full(settings):
    """With the values of --full, if it is given, where the command line does not name others."""
    names = {field.name for field in dataclasses.fields(settings)} - common.given_flags()
    return dataclasses.replace(settings, **{name: value for name, value in FULL.items()
                                            if common.flags.FLAGS.full and name in names})


def _as_flags(settings) -> list[str]:
    """A dataclass as the flags that give it."""
    return [f'--{name}={value}' for name, value in vars(settings).items()]


def _made_up_records(folder: pathlib.Path) -> str:
    with common.quiet_import():
        from dist.benchmark.made_up_records import make_records
    return make_records(folder)


def _require_matplotlib() -> None:
    from inception_mg.report import plots
    if not plots.available():
        raise UserError('--png: matplotlib is not installed: pip install ".[demo]"')


if __name__ == '__main__':
    common.define_flags(config.BenchmarkConfig, config.ModelConfig)
    common.define_flags(config.DataConfig, image_size=149, batch_size=8)
    common.run(main)
