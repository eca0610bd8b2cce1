"""Shows what sits where and what crosses which wire, for any of the five ways of running, without training.

    python scripts/report.py --way=in_graph --num_workers=2
    python scripts/report.py --all --output_directory=DIR    # report.html, report.json and a picture of each way

Runs one step on made-up images, on this machine; a cluster is started inside this process. CPU devices stand in for
GPUs. Exit codes: 0, 3 when measured bytes are not those predicted, 2 for wrong flags, 1 otherwise.
"""

import dataclasses
import json
import os

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config

EXIT_DIFFERENT = 3
NOTES = ('Measured in one step from the runtime\'s own records: the size of every tensor that was sent, and for '
         'those between tasks the time from when it was ready to when it was there.',
         f'All tasks ran in one process on this machine\'s {os.cpu_count()} CPU cores, one client at a time; CPU 1, '
         'CPU 2 ... stand in for GPUs. Bytes do not depend on that; seconds do.')


def main() -> int:
    report, (data, model) = common.from_flags(config.ReportConfig), common.data_and_model()
    size = data.image_size
    checks.check_report(report)
    checks.check_model(model)
    checks.check_data(config.DataConfig(data_dir='none', image_size=size), model.model)
    with common.quiet_import():
        from dist.experiments.rehearsal import rehearse
        from inception_mg.fast.choice import fast_operations
        from inception_mg.report.page import text_overview, text_report
        from inception_mg.report.summary import summarise
        from inception_mg.report.ways import ways_of
        from inception_mg.training.image_task import synthetic_task
    task, ways = synthetic_task(report.images_per_tower, size, report.num_classes, model, fast_operations()[0]), []
    for way in ways_of(report):
        ways.append(summarise(way, rehearse(way, task), report.network_gbits))
        print('\n'.join(text_report(ways[-1])))
    if len(ways) > 1:
        print('\n'.join(text_overview(ways)))
    if report.output_directory:
        write(ways, report.output_directory, f'{task.title}, {report.images_per_tower} images per tower')
    return 0 if all(way.equal for way in ways) else EXIT_DIFFERENT


def write(ways: list, directory: str, subject: str) -> None:
    """Writes the page, the JSON and the pictures."""
    from inception_mg.files import write_text
    from inception_mg.report.page import html_page, thickest
    from inception_mg.report.picture import draw
    from inception_mg.training.train import make_directory
    make_directory(directory, 'output_directory')
    content = {'subject': subject, 'notes': NOTES, 'ways': [dataclasses.asdict(way) for way in ways]}
    files = {'report.html': html_page(ways, subject, NOTES), 'report.json': json.dumps(content, indent=1)}
    files |= {f'{way.name}.svg': draw(way, thickest(ways)) for way in ways}
    for name, text in files.items():
        write_text(os.path.join(directory, name), text)
    print(f'wrote {", ".join(files)} in {directory}')


if __name__ == '__main__':
    common.define_flags(config.ReportConfig, config.ModelConfig)
    common.define_flags(config.DataConfig, only=('image_size',))
    common.run_task(main)
