"""Shows what sits where and what crosses which wire, for any of the five ways of running, without training.

    python scripts/report.py --way=in_graph --num_workers=2
    python scripts/report.py --all --output_directory=DIR    # report.html, report.json and a picture of each way

Runs one step on made-up images, on this machine; a cluster is started inside this process. Where the machine has
no GPUs, and in clusters, CPU devices stand in for them. Exit codes: 0, 3 when measured bytes are not those predicted,
2 for wrong flags, 1 otherwise.
"""

import dataclasses
import json
import os
import pathlib

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config

EXIT_DIFFERENT = 3


def main() -> int:
    report, model = common.from_flags(config.ReportConfig), common.from_flags(config.ModelConfig)
    size = common.from_flags(config.DataConfig, batch_size=1).image_size
    checks.check_report(report)
    checks.check_model(model)
    checks.check_data(config.DataConfig(data_dir='none', image_size=size))
    with common.quiet_import():
        from inception_mg.report.page import text_report
        from inception_mg.report.summary import summarise
        from inception_mg.report.ways import ways_of
    ways = []
    for way in ways_of(report):
        ways.append(summarise(way, rehearse(way, report, model, size), report.network_gbits))
        print('\n'.join(text_report(ways[-1])))
    if report.output_directory:
        write(ways, report, model, size)
    return 0 if all(way.equal for way in ways) else EXIT_DIFFERENT


def rehearse(way, report: config.ReportConfig, model: config.ModelConfig, size: int):
    """Runs the way with Inception v3 on made-up images."""
    from dist.rehearsal import inception_builder
    from dist.rehearsal import rehearse as run
    return run(way, inception_builder(report.images_per_tower, size, report.num_classes, model))


def write(ways: list, report: config.ReportConfig, model: config.ModelConfig, size: int) -> None:
    """Writes the page, the JSON and the pictures."""
    from inception_mg.report.page import html_page, thickest
    from inception_mg.report.picture import draw
    from inception_mg.training.train import make_directory
    make_directory(report.output_directory, 'output_directory')
    subject = (f'Inception v3, width {model.width:g}, {report.num_classes} classes, {size} x {size}, '
               f'{model.compute_dtype}, {report.images_per_tower} images per tower')
    notes = ['Measured in one step from the runtime\'s own records: the size of every tensor that was sent, and for '
             'those between tasks the time from when it was ready to when it was there.',
             f'All tasks ran in one process on this machine\'s {os.cpu_count()} CPU cores; CPU 1, CPU 2 ... stand in '
             'for GPUs. Bytes do not depend on that; seconds do.']
    files = {'report.html': html_page(ways, subject, notes),
             'report.json': json.dumps([dataclasses.asdict(way) for way in ways], indent=1)}
    files |= {f'{way.name}.svg': draw(way, thickest(ways)) for way in ways}
    for name, text in files.items():
        path = pathlib.Path(report.output_directory, name)
        partial = path.with_name(path.name + '.partial')
        partial.write_text(text, encoding='utf-8')
        partial.replace(path)
    print(f'wrote {", ".join(files)} in {report.output_directory}')


if __name__ == '__main__':
    common.define_flags(config.ReportConfig, config.ModelConfig)
    common.define_flags(config.DataConfig, only=('image_size',))
    common.run_task(main)
