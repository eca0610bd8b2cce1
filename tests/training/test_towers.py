"""Reading for several towers, and the byte balance."""

import numpy as np
import pytest
import tensorflow as tf
import toy_model

from inception_mg.placement import Placement, Tower, in_graph, multi_gpu, one_device
from inception_mg.training.task import Task
from inception_mg.training.towers import Variables, read_batches
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
D = [f'/device:CPU:{number}' for number in range(4)]


def numbered(count: int):
    """A data set of images that are their own number; reader i of n has every n-th one."""
    def make(first, readers, size):
        numbers = np.arange(first, count, readers, dtype=np.int32)
        return tf.data.Dataset.from_tensor_slices((numbers[:, None].astype(np.float32), numbers)).repeat().batch(
            size, drop_remainder=True)
    return make


@pytest.mark.parametrize('placement', [
    multi_gpu(D[:1]), multi_gpu(D[:2]), multi_gpu(D),
    Placement(D[:1], (Tower(D[0], D[0]), Tower(D[1], D[1]))),                       # Two hosts.
    Placement(D[:1], (Tower(D[0], D[0]), Tower(D[1], D[1]), Tower(D[2], D[0]), Tower(D[3], D[1])))])
def test_towers_get_different_images_in_every_step(placement):
    with tf.Graph().as_default():
        batches, starts = read_batches(placement, numbered(40), batch_size=8)
        with v1.Session(config=v1.ConfigProto(device_count={'CPU': 4})) as session:
            session.run(starts)
            seen = []
            for _ in range(5):
                parts = session.run(batches)
                for images_v, labels_v in parts:
                    np.testing.assert_array_equal(images_v[:, 0], labels_v)
                    assert len(labels_v) == 8 // len(placement.towers)
                seen.extend(label for _, labels_v in parts for label in labels_v)
    assert sorted(seen) == list(range(40))  # One epoch: every image once.


def test_equal_towers_keep_their_own_batches():
    placement = Placement(D[:1], (Tower(D[0], D[0]), Tower(D[0], D[0])))
    with tf.Graph().as_default():
        batches, starts = read_batches(placement, numbered(8), batch_size=8)
        with v1.Session() as session:
            session.run(starts)
            labels_v = session.run([labels for _, labels in batches])
    assert sorted(np.concatenate(labels_v)) == list(range(8))


def test_variables_go_to_the_ps_by_size_and_hosts_read_once():
    placement = in_graph(2, [['/device:GPU:0'], ['/device:GPU:0', '/device:GPU:1']])
    with tf.Graph().as_default() as graph:
        variables = Variables(placement.variables)
        reads = {}
        for tower in placement.towers:
            with variables.on(tower.host), tf.device(tower.device):
                for name, size in (('large', 100), ('small', 10), ('middle', 50)):
                    reads.setdefault(name, []).append(v1.get_variable(name, [size], tf.float32))
                counter = v1.get_variable('counter', [], tf.int64, v1.zeros_initializer(), trainable=False)
        where = {v.op.name: v.device for v in v1.global_variables()}
        ps = '/job:ps/task:{}/device:CPU:0'
        assert where == {'large': ps.format(0), 'small': ps.format(1), 'middle': ps.format(1), 'counter': ps.format(1)}
        assert isinstance(counter, tf.Variable) and len(variables.trainable) == 3
        for tensors in reads.values():
            assert tensors[1] is tensors[2] and tensors[0] is not tensors[1]  # One read per host.
            assert [t.device for t in tensors[:2]] == list(placement.hosts)
        assert len([op for op in graph.get_operations() if op.type == 'VarHandleOp']) == 4
        initial = [op for op in graph.get_operations() if op.type == 'RandomUniform']
        assert len(initial) == 3  # Beside their variables:
        for op in initial:
            name = op.name.split('/')[0]
            assert not op.device and op.colocation_groups() == [b'loc:@' + name.encode()]


@pytest.mark.parametrize('devices', [
    ['/device:CPU:0', '/device:CPU:1'], ['/job:ps/task:1'], ['/job:ps/task:0', '/job:worker/task:1'],
    ['/job:ps/task:0', '/job:ps/task:2']])
def test_other_lists_of_variable_devices_are_refused(devices):
    with pytest.raises(ValueError, match='variables must be on'):
        Variables(devices)


@pytest.mark.parametrize('readers, aggregated, done', [(1, 1, 7), (3, 1, 2), (3, 3, 7), (3, 2, 4)])
def test_a_session_that_begins_tells_its_readers_how_far_they_were(readers, aggregated, done):
    def dataset_from(batches_done):
        def dataset_for(part, parts, batch_size):
            inputs, targets = toy_model.data(batch_size)
            return tf.data.Dataset.from_tensors((inputs, targets + tf.cast(batches_done, tf.float32))).repeat()
        return dataset_for

    with tf.Graph().as_default(), v1.Session() as session:
        task = Task(dataset_from(0), toy_model.toy_loss, 8, 8, make_optimizer=toy_model.make_optimizer,
                    dataset_from=dataset_from)
        step = build_train_step(one_device(), task, readers=readers, aggregated=aggregated)
        session.run(v1.global_variables_initializer())
        session.run(step.global_step.assign(7))
        session.run(step.start_input)
        np.testing.assert_allclose(session.run(step.batch[1]), toy_model.data(8)[1] + done)
