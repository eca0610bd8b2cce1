"""Draws the loss, the learning rate and precision@1 over steps, from the summaries, as a PNG.

    python scripts/plot_training.py --train_dir=DIR --output=curves.png
"""

import glob
import os

from absl import flags

import common
from inception_mg.errors import FlagError, UserError

TAGS = ('loss', 'learning_rate', 'precision@1')


def read_scalars(directory: str) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, of all event files in `directory`; a later file wins."""
    import tensorflow as tf
    found: dict[str, dict[int, float]] = {}
    for path in sorted(glob.glob(os.path.join(directory, 'events.out.tfevents.*')), key=os.path.getmtime):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag in TAGS:
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def draw(training: dict, evaluation: dict, title: str, output: str) -> None:
    """Writes the figure: loss on the left axis, precision@1 on the right, the learning rate below."""
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(9, 6), height_ratios=(4, 1), layout='constrained')
    for axis, values, colour, label in ((top, training.get('loss'), '#1f5fa8', 'training loss (with weight decay)'),
                                        (bottom, training.get('learning_rate'), '#666666', 'learning rate')):
        axis.plot(*zip(*sorted(values.items()), strict=True), color=colour, linewidth=1.2)
        axis.set_ylabel(label, color=colour)
        axis.grid(alpha=0.3)
    if evaluation.get('precision@1'):
        points = sorted(evaluation['precision@1'].items())
        right = top.twinx()
        right.plot(*zip(*points, strict=True), color='#b3401f', marker='o', markersize=3, linewidth=1.4)
        right.set_ylim(0, 1)
        right.set_ylabel(f'precision@1 of validation images (last {points[-1][1]:.3f})', color='#b3401f')
    top.set_title(title)
    bottom.set_xlabel('global_step')
    figure.savefig(output, dpi=120)


def main() -> int:
    train_dir, output = flags.FLAGS.train_dir, flags.FLAGS.output
    if not train_dir or not output:
        raise FlagError('give --train_dir and --output=FILE.png')
    with common.quiet_import():
        training = read_scalars(train_dir)
        evaluation = read_scalars(flags.FLAGS.eval_dir or os.path.join(train_dir, 'eval'))
    if 'loss' not in training:
        raise UserError(f'--train_dir={train_dir}: no summaries of a training there')
    try:
        draw(training, evaluation, os.path.basename(os.path.normpath(train_dir)), output)
    except ImportError as error:
        raise UserError(f'{error.name} is not installed: pip install ".[demo]"') from None
    print(f'{output}: {len(training["loss"])} points of loss, {len(evaluation.get("precision@1", {}))} of precision@1')
    return 0


if __name__ == '__main__':
    flags.DEFINE_string('train_dir', '', 'Folder with the summaries of the training.')
    flags.DEFINE_string('eval_dir', '', 'Folder with those of the evaluation; default: TRAIN_DIR/eval.')
    flags.DEFINE_string('output', '', 'The PNG to write.')
    common.run(main)
