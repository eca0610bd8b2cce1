"""The curve of a training of several lives: one value per step, of the life that counts."""

import os
import pathlib

import plot_training
import pytest
import tensorflow as tf

Event = tf.compat.v1.Event


def write(path: pathlib.Path, begins: float, start: int | None, losses: dict[int, float]) -> None:
    """An event file of a life that began at `begins` (s) and at step `start`; the file times are all the same."""
    v1 = tf.compat.v1
    events = [Event(wall_time=begins, file_version='brain.Event:2')]
    if start is not None:
        events.append(Event(wall_time=begins + 1, step=start, session_log=v1.SessionLog(status=v1.SessionLog.START)))
    events += [Event(wall_time=begins + 2, step=step, summary=v1.Summary(value=[
        v1.Summary.Value(tag='loss', simple_value=loss), v1.Summary.Value(tag='other', simple_value=9)]))
        for step, loss in losses.items()]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for event in events:
            writer.write(event.SerializeToString())
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize('names', [('1', '2'), ('2', '1')], ids=['in order', 'in reverse order'])
def test_a_life_takes_back_what_was_written_from_its_first_step_on(tmp_path, names):
    first, second = (tmp_path / f'events.out.tfevents.{name}.host' for name in names)
    write(first, 100.0, 1, {step: 1.0 for step in range(1, 7)})
    write(second, 200.0, 4, {4: 2.0, 5: 2.0})
    assert plot_training.read_scalars(str(tmp_path)) == {'loss': {1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0}}


def test_lives_that_began_at_the_same_time_count_in_the_order_of_their_names(tmp_path):
    for name, loss in (('1', 1.0), ('2', 2.0)):
        write(tmp_path / f'events.out.tfevents.{name}.host', 100.0, 1, {1: loss})
    assert plot_training.read_scalars(str(tmp_path)) == {'loss': {1: 2.0}}


def test_a_file_that_was_cut_and_an_empty_one_give_what_is_whole(tmp_path):
    path = tmp_path / 'events.out.tfevents.1.host'
    write(path, 100.0, None, {1: 1.0, 2: 1.0, 3: 1.0})
    path.write_bytes(path.read_bytes()[:-5])
    (tmp_path / 'events.out.tfevents.2.host').write_bytes(b'')
    assert plot_training.read_scalars(str(tmp_path)) == {'loss': {1: 1.0, 2: 1.0}}
