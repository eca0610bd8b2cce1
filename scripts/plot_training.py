"""Draws the loss, the learning rate and precision@1 over steps, from the summaries, as a PNG.

    python scripts/plot_training.py --train_dir=DIR --output=curves.png
"""

import os

import common
from inception_mg.errors import FlagError, UserError
from inception_mg.files import is_folder, names_in
from inception_mg.report import plots

TAGS = ('loss', 'learning_rate', 'precision@1')


def read_scalars(directory: str) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, of all event files in `directory`.

    One value per step, of the life that counts: a session that starts at a step takes back all from there on that was
    written before it, as in TensorBoard. Files in order of the times in their names, of their own first event.
    """
    import tensorflow as tf
    found: dict[str, dict[int, float]] = {}
    files = []
    names = names_in(directory) if is_folder(directory) else []
    for path in [os.path.join(directory, name) for name in names if name.startswith('events.out.tfevents.')]:
        events = []
        try:
            events.extend(tf.compat.v1.train.summary_iterator(path))
        except tf.errors.DataLossError:  # Cut by a kill: what is whole counts.
            pass
        if events:
            files.append((events[0].wall_time, path, events))
    for *_, events in sorted(files, key=lambda file: file[:2]):
        for event in events:
            if event.session_log.status == event.session_log.START:
                found = {tag: {step: value for step, value in values.items() if step < event.step}
                         for tag, values in found.items()}
            for value in event.summary.value:
                if value.tag in TAGS:
                    found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def main() -> int:
    train_dir, output = common.flags.FLAGS.train_dir, common.flags.FLAGS.output
    if not train_dir or not output:
        raise FlagError('give --train_dir and --output=FILE.png')
    with common.quiet_import():
        training = read_scalars(train_dir)
        evaluation = read_scalars(common.flags.FLAGS.eval_dir or os.path.join(train_dir, 'eval'))
    if 'loss' not in training:
        raise UserError(f'--train_dir={train_dir}: no summaries of a training there')
    precisions = evaluation.get('precision@1', {})
    plots.draw_training(training['loss'], training.get('learning_rate', {}), precisions,
                        os.path.basename(os.path.normpath(train_dir)), output)
    print(f'{output}: {len(training["loss"])} points of loss, {len(precisions)} of precision@1')
    return 0


if __name__ == '__main__':
    common.flags.DEFINE_string('train_dir', '', 'Folder with the summaries of the training.')
    common.flags.DEFINE_string('eval_dir', '', 'Folder with those of the evaluation; default: TRAIN_DIR/eval.')
    common.flags.DEFINE_string('output', '', 'The PNG to write.')
    common.run(main)
