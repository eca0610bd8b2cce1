"""Says what an exported model sees in images.

    python scripts/classify.py MODEL photo.jpg folder 'photos/**/*.png' [--top_k=3] [--json]

MODEL is a folder that scripts/export.py wrote. Files of every common type are read, folders with all that is below
them. A line per file goes to stdout; what could not be read is named on stderr (with --json also on stdout). Exit
codes: 0, 3 if some file could not be read, 2 for wrong arguments, 1 otherwise.
"""

import itertools
import sys

import common  # First: it quiets TensorFlow's start.
from inception_mg import checks, config, paths
from inception_mg.data.images import count_kinds
from inception_mg.data.progress import note, progress
from inception_mg.errors import FlagError

EXIT_UNREADABLE = 3


def main(arguments: list[str]) -> int:
    settings = common.from_flags(config.ClassifyConfig)
    checks.check_classify(settings)
    if len(arguments) < 2:
        raise FlagError('give the folder of an exported model, and then images, folders or patterns')
    with common.quiet_import():
        from inception_mg.serving.classify import classify, find_files
    export_dir, *rest = arguments
    export_dir = common.settle_path('MODEL', export_dir, paths.FOLDER, far=True)
    found = find_files(rest)
    outcomes = classify(export_dir, found.paths, settings) if found.paths else iter(())
    if not sys.stdout.isatty():  # Else the lines show how far it is.
        outcomes = progress(outcomes, len(found.paths), 'classify', 'file')
    unreadable = [outcome.kind for outcome in itertools.chain(found.missing, outcomes) if show(outcome, settings.json)]
    if unreadable:
        note(f'{len(unreadable)} of {len(found.paths) + len(found.missing)} could not be read: '
             f'{count_kinds(unreadable)}')
    return EXIT_UNREADABLE if unreadable else 0


def show(outcome, as_json: bool) -> bool:
    """Prints one outcome; returns whether it is a failure."""
    if outcome.error:
        note(outcome.line())
    if as_json:
        print(outcome.as_json())
    elif not outcome.error:
        print(outcome.line())
    return bool(outcome.error)


if __name__ == '__main__':
    common.define_flags(config.ClassifyConfig)
    common.run(main, arguments='MODEL IMAGE_OR_FOLDER...')
