"""Variables are dealt to the ps largest first, by every process alike, whatever the order of their making."""

import dataclasses

import pytest
import tensorflow as tf

from inception_mg import dealing
from inception_mg.placement import CPU, Tower, between_graph
from inception_mg.training.ps_strategy import trained_specs
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
SIZES = {'small': 1, 'huge': 60, 'middle': 20, 'large': 30, 'frozen': 90}


def dataset_for(part, parts, size):
    return tf.data.Dataset.from_tensors(tf.ones([size, 1])).repeat()


def loss_for(batch, tower):
    assert batch.shape == [2, 1] and batch.dtype == tf.float32
    steps = v1.get_variable('steps', [50], tf.float32, v1.zeros_initializer(), trainable=False)
    assert isinstance(steps, tf.Variable)
    parts = [tf.reduce_sum(v1.get_variable(name, [1, size])) for name, size in SIZES.items()]
    again = v1.get_variable('huge', [1, SIZES['huge']])
    return tf.add_n(parts) * tf.reduce_mean(batch) + tf.reduce_sum(again) + tf.reduce_sum(steps.read_value())


TASK = Task(dataset_for, loss_for, 10, 2, frozen=('frozen',))


def test_the_largest_go_first():
    assert dealing.largest_first([1, 60, 20, 30], 2) == [1, 0, 1, 1]
    assert dealing.largest_first([1, 60, 20, 30], 1) == [0] * 4
    assert dealing.largest_first([5, 5, 5], 3) == [0, 1, 2]  # Equal ones in their order.
    assert dealing.largest_first([], 2) == []


def test_a_dry_build_weighs_what_is_trained_and_leaves_nothing():
    with tf.Graph().as_default() as graph:
        specs = trained_specs(TASK, tf.ones([2, 1]), Tower(CPU, CPU))
        assert [op.type for op in graph.get_operations()] == ['Const']
    assert specs == {name: tf.TensorSpec([1, size]) for name, size in SIZES.items() if name != 'frozen'}


@pytest.mark.parametrize('worker', [0, 3])
def test_each_worker_puts_the_trained_variables_where_they_balance(worker):
    with tf.Graph().as_default():
        step = build_train_step(between_graph(2, worker, [Tower(CPU, CPU)]), TASK, reader=worker, readers=4)
        ps = {v.op.name: tf.DeviceSpec.from_string(v.device).task for v in v1.global_variables()}
        slots = {name: task for name, task in ps.items() if name.startswith('huge')}
    assert {v.op.name: ps[v.op.name] for _, v in step.gradients} == {'small': 1, 'huge': 0, 'middle': 1, 'large': 1}
    assert ps['global_step'] == 0 and len(slots) == 4 and set(slots.values()) == {0}  # Slots lie beside.


def test_one_ps_needs_no_dry_build():
    built = []

    def counting(batch, tower):
        built.append(tower)
        return loss_for(batch, tower)

    with tf.Graph().as_default():
        build_train_step(between_graph(1, 0, [Tower(CPU, CPU)]), dataclasses.replace(TASK, loss_for=counting))
    assert len(built) == 1
