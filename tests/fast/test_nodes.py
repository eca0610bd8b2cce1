"""Variables and operations that are made together are those that get_variable and the operations' functions make."""

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.fast.nodes import Nodes, build_variable

v1 = tf.compat.v1


@pytest.fixture
def session():
    with tf.Graph().as_default(), v1.variable_scope('', use_resource=True), v1.Session() as sess:
        yield sess


def test_variables_with_their_values_names_and_devices(session):
    nodes, given = Nodes(), tf.constant([1.0, 2.0, 3.0])
    ones = nodes.add_value(1.0, tf.TensorShape([2, 2]), 'block/ones/Initializer', '/device:CPU:0')
    same = nodes.add_value(1.0, tf.TensorShape([2, 2]), 'block/more/Initializer', '/device:CPU:0')
    nodes.add_variable('block/ones', '/device:CPU:0', tf.TensorShape([2, 2]), ones)
    nodes.add_variable('block/more', '/device:CPU:0', tf.TensorShape([2, 2]), same)
    nodes.add_variable('block/given', '/device:CPU:0', tf.TensorShape([3]), nodes.given(given))
    with tf.name_scope('elsewhere'), tf.device('/device:GPU:7'), tf.control_dependencies([given]):
        made = nodes.build()
    assert list(made) == ['block/ones', 'block/more', 'block/given']
    for name, variable in made.items():
        assert (variable.op.name, variable.device, variable.trainable) == (name, '/device:CPU:0', False)
        assert not variable.op.control_inputs
    assert v1.global_variables() == list(made.values()) and not v1.trainable_variables()
    session.run(v1.global_variables_initializer())
    np.testing.assert_array_equal(session.run(made['block/more']), np.ones([2, 2]))
    np.testing.assert_array_equal(session.run(made['block/given']), [1, 2, 3])
    session.run(made['block/ones'].assign_add(tf.ones([2, 2])))
    np.testing.assert_array_equal(session.run(made['block/ones']), 2 * np.ones([2, 2]))


def test_an_operation_waits_for_what_it_is_told_to(session):
    counter = v1.get_variable('counter', [], tf.float32, v1.zeros_initializer())
    added = tf.identity(counter.assign_add(1.0))
    nodes = Nodes()
    nodes.add_float('ReadVariableOp', 'late', '', [nodes.given(counter.handle), nodes.given(added, wait=True)], 'dtype')
    nodes.build()
    late = v1.get_default_graph().get_operation_by_name('late')
    assert late.control_inputs == [added.op]
    session.run(counter.initializer)
    assert session.run(late.outputs[0]) == 1


def test_a_name_that_is_taken_is_an_error(session):
    v1.get_variable('taken', [], tf.float32, v1.zeros_initializer())
    nodes = Nodes()
    nodes.add_variable('taken', '', tf.TensorShape([]), nodes.add_value(0.0, tf.TensorShape([]), 'zero', ''))
    with pytest.raises(KeyError, match='taken'):
        nodes.build()


@pytest.mark.parametrize('trainable', [True, False])
def test_one_variable_beside_its_initial_value(session, tmp_path, trainable):
    normal = v1.truncated_normal_initializer(stddev=0.1)
    with v1.device(v1.train.replica_device_setter(ps_tasks=1, ps_device='/job:localhost', worker_device='')):
        made = build_variable('layer/weights', [4, 5], tf.float32, normal, trainable)
    assert made.op.name == 'layer/weights' and made.shape == [4, 5] and made.dtype == tf.float32
    assert made.device == made.initial_value.device == made.initializer.device == '/job:localhost/task:0'
    assert (v1.trainable_variables() == [made]) == trainable and v1.global_variables() == [made]
    assert v1.report_uninitialized_variables().shape.rank == 1


def test_they_are_saved_and_restored_like_others(session, tmp_path):
    made = build_variable('weights', [4], tf.float32, v1.random_normal_initializer(seed=1), True)
    nodes = Nodes()
    nodes.add_variable('weights/Slot', '', tf.TensorShape([4]), nodes.given(made.initial_value))
    slot = nodes.build()['weights/Slot']
    session.run(v1.global_variables_initializer())
    assert len(session.run(v1.report_uninitialized_variables())) == 0
    saver, before = v1.train.Saver(), session.run([made, slot])
    np.testing.assert_array_equal(*before)
    path = saver.save(session, str(tmp_path / 'model.ckpt'))
    assert [name for name, _ in tf.train.list_variables(path)] == ['weights', 'weights/Slot']
    session.run([made.assign(tf.zeros([4])), slot.assign(tf.zeros([4]))])
    saver.restore(session, path)
    np.testing.assert_array_equal(session.run([made, slot]), before)
