"""Measures speed on this machine: every way of training, what bounds it, and what others offer for the same work.

    python scripts/benchmark.py --json=figures.json --png=figures.png
    python scripts/benchmark.py --compute_dtype=bfloat16 --batch_size=32 --full
    python scripts/benchmark.py --only=one_device,keras,matmul --peer=none

Each contender is a process of its own, or a small cluster. They take turns, and what counts are the ratios of turns
side by side, not the seconds. --batch_size is that of one process: two towers share it, two workers have one each.
docs/benchmark.md says what each contender does and how to read the table.
"""

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Sequence

from absl import flags

import common
from dist import benchmark_heats as heats
from inception_mg import benchmark, benchmark_report, checks, config
from inception_mg.errors import UserError

FULL = {'image_size': 299, 'batch_size': 32, 'rounds': 9}  # --full, unless their own flags say otherwise.
RECORDS = ('end_to_end', 'input', 'input_2016')  # What needs images.


def main() -> int:
    full = FULL if flags.FLAGS.full else {}
    full = {name: value for name, value in full.items() if not flags.FLAGS[name].present}
    settings = common.from_flags(config.BenchmarkConfig, **{n: v for n, v in full.items() if n == 'rounds'})
    data = common.from_flags(config.DataConfig, **{n: v for n, v in full.items() if n != 'rounds'})
    model = common.from_flags(config.ModelConfig)
    checks.check_benchmark(settings)
    checks.check_data(data)
    checks.check_model(model)
    chosen = heats.chosen_heats(settings.only, settings.peer, model.compute_dtype)
    start = heats.with_start(settings.only)
    environ = {name: value for name, value in os.environ.items() if name != 'TF_CONFIG'}
    title = (f'Inception v3 of width {model.width:g}, {data.image_size} x {data.image_size}, batch {data.batch_size}, '
             f'{model.compute_dtype}')
    machine = benchmark_report.machine()
    print(f'{title}; {settings.rounds} rounds\n{machine["cpu"]}, {machine["cores"]} cores, TensorFlow '
          f'{machine["tensorflow"]}')
    with tempfile.TemporaryDirectory(prefix='benchmark_') as folder:
        folder = pathlib.Path(folder)
        if not data.data_dir and (start or any(name in RECORDS for heat in chosen for name in heat.names)):
            with common.quiet_import():
                from inception_mg.benchmark_records import make_records
            data = dataclasses.replace(data, data_dir=make_records(folder))
        passed_on = [*as_flags(data), *as_flags(model)]
        laps, infos, failed = run_heats(chosen, settings, passed_on, folder, environ)
        seconds = time_starts(3 if settings.full else 1, folder, passed_on, environ, failed) if start else []
    report = benchmark_report.Report(
        title, machine, {**vars(data), **vars(model), **vars(settings)}, benchmark_report.figures(laps, infos),
        benchmark_report.pairs(laps, heats.PAIRS), seconds, failed)
    print('\n'.join(['', *report.lines()]))
    write(report, settings)
    return 1 if failed else 0


def run_heats(chosen: Sequence[heats.Heat], settings: config.BenchmarkConfig, passed_on: Sequence[str],
              folder: pathlib.Path, environ: dict) -> tuple[list[dict], dict[str, dict], dict[str, str]]:
    """Runs one heat after another; returns the laps of all rounds, what contenders said of themselves, failures."""
    laps, infos, failed = [], {}, {}
    for heat in chosen:
        print(f'{heat.title}: {", ".join(heat.names)}')
        logs = pathlib.Path(tempfile.mkdtemp(dir=folder))
        racers = [heats.make_racer(name, passed_on) for name in heat.names]
        with benchmark.starting(racers, logs, environ, failed) as ready:
            laps += benchmark.race(ready, settings.rounds, settings.lap_seconds, failed)
            infos |= {racer.name: racer.info for racer in ready}
    return laps, infos, failed


def time_starts(times: int, folder: pathlib.Path, passed_on: Sequence[str], environ: dict, failed: dict[str, str]
                ) -> list[float]:
    """Seconds of each start of a cluster."""
    print('start: 2 ps, a chief and a worker')
    try:
        return [heats.time_start(pathlib.Path(tempfile.mkdtemp(dir=folder)), passed_on, environ)
                for _ in range(times)]
    except benchmark.RacerFailed as error:
        failed['start'] = str(error)
        return []


def as_flags(settings) -> list[str]:
    """A dataclass as the flags that give it."""
    return [f'--{name}={value}' for name, value in vars(settings).items()]


def write(report: benchmark_report.Report, settings: config.BenchmarkConfig) -> None:
    """The files of --json and --png."""
    if settings.json:
        pathlib.Path(settings.json).write_text(report.as_json())
    if settings.png:
        try:
            report.draw([name for names in heats.PEERS.values() for name in names], settings.png)
        except ImportError as error:
            raise UserError(f'{error.name} is not installed: pip install ".[demo]"') from None


if __name__ == '__main__':
    common.define_flags(config.BenchmarkConfig, config.ModelConfig)
    common.define_flags(config.DataConfig, image_size=149, batch_size=8)
    common.run(main)
