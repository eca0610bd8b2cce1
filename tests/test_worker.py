"""A worker's graph, without any process: what sits where, and what the refusals say."""

import pytest
import tensorflow as tf

from dist import worker as workers
from dist.cluster import Cluster
from dist.peers import ClusterLost, Peers
from inception_mg.config import ClusterConfig, DataConfig, DeviceConfig, ModelConfig, OptimizerConfig, RunConfig
from inception_mg.errors import FlagError
from inception_mg.training import train
from inception_mg.training.devices import local_machine
from inception_mg.training.hooks import CheckpointHook

v1 = tf.compat.v1
CLUSTER = Cluster(('127.0.0.1:1', '127.0.0.1:2'), ('127.0.0.1:3', '127.0.0.1:4', '127.0.0.1:5'), 'worker', 0)
PS = [f'/job:ps/task:{k}/device:CPU:0' for k in range(2)]
WORKER = '/job:worker/task:0/device:CPU:'


@pytest.fixture(scope='module')
def chief(three_classes, tmp_path_factory):
    """The graph of a synchronous chief with two towers: its _Worker, graph, step and hooks."""
    data = DataConfig(data_dir=three_classes, batch_size=4, image_size=75)
    run = RunConfig(train_dir=str(tmp_path_factory.mktemp('chief')), max_steps=9)
    machine = workers.cluster_machine(CLUSTER, local_machine(DeviceConfig(num_gpus=2)))
    config = ClusterConfig(sync=True, num_replicas_to_aggregate=2)
    task = workers._Worker(CLUSTER, Peers(CLUSTER), machine, train.open_training_data(data), data,
                           ModelConfig(width=0.05), OptimizerConfig(), run, config,
                           workers.aggregated_replicas(CLUSTER, config), print)
    with tf.Graph().as_default() as graph:
        step, sync = task.build()
        start = train.Start.find(run)
        _, hooks = task.chief('grpc://127.0.0.1:3', step, sync, start)
        return task, graph, step, hooks, task.start_lines(step, start)


def test_variables_are_on_the_ps_and_balanced(chief):
    loads = dict.fromkeys(PS, 0)
    with chief[1].as_default():
        for variable in v1.global_variables():
            loads[variable.device] += variable.shape.num_elements() * variable.dtype.size
    assert max(loads.values()) <= 1.2 * sum(loads.values()) / len(PS)


def test_every_operation_is_on_the_ps_or_on_this_worker(chief):
    devices = {operation.device for operation in chief[1].get_operations()} - {''}
    assert devices == {*PS, WORKER + '0', WORKER + '1'}
    work = [operation for operation in chief[1].get_operations() if operation.type in ('Conv2D', 'MatMul')]
    assert {operation.device for operation in work} == {WORKER + '0', WORKER + '1'}


def test_the_chief_reads_writes_and_summarises_on_its_own_cpu(chief):
    for kind in ('SaveV2', 'RestoreV2', 'MergeSummary', 'IteratorV2'):
        found = [operation for operation in chief[1].get_operations() if operation.type == kind]
        assert found and {operation.device for operation in found} == {WORKER + '0'}, kind
    assert len([1 for operation in chief[1].get_operations() if operation.type == 'SaveV2']) == 1  # Unsharded.


def test_the_epoch_is_counted_in_images_of_all_aggregated_workers(chief):
    text = '\n'.join(chief[4])
    assert '8 images per update; here 4 = 2 towers x 2; 3.0 steps per epoch' in text
    assert 'cluster    chief of 2 ps and 3 workers, synchronous, 2 of 3 gradients per update; reads part 1 of 3' in text


def test_the_job_names_its_manner_and_its_directory(chief):
    with chief[1].as_default():
        job = chief[0].describe()
    assert job['id'] == f'{chief[0].run.train_dir} (synchronous, 2 of 3 gradients per update)'
    assert not [name for name in job['variables'] if name.startswith('sync')]


def test_gradients_per_update():
    def count(**config) -> int:
        return workers.aggregated_replicas(CLUSTER, ClusterConfig(**config))

    assert (count(), count(sync=True), count(sync=True, num_replicas_to_aggregate=2)) == (1, 3, 2)
    with pytest.raises(FlagError, match='=4, but the cluster has 3 workers'):
        count(sync=True, num_replicas_to_aggregate=4)


def test_a_lost_cluster_asks_for_a_restart_and_other_errors_do_not():
    with pytest.raises(ClusterLost, match='chief lost the rest of the cluster: gone') as lost:
        with workers.explaining_loss(CLUSTER):
            raise tf.errors.UnavailableError(None, None, 'gone\nmore')
    assert lost.value.exit_code == 75
    with pytest.raises(tf.errors.DataLossError), workers.explaining_loss(CLUSTER):
        raise tf.errors.DataLossError(None, None, 'damaged')


def test_what_a_dead_chief_had_not_saved_is_saved_by_the_next(tmp_path):
    """The variables on the ps outlive it: that they are at the last step does not mean that a file is."""
    with tf.Graph().as_default():
        step = v1.get_variable('global_step', [], tf.int64, v1.constant_initializer(5), use_resource=True)
        hook = CheckpointHook(v1.train.Saver([step]), [step], step, str(tmp_path), 1e6, lambda line: None)
        with v1.Session() as session:
            session.run(step.initializer)
            times = []
            for _ in range(2):  # The second life finds the checkpoint of the first, and leaves it alone.
                hook.after_create_session(session, None)
                hook.end(session)
                times.append((tmp_path / 'model.ckpt-5.index').stat().st_mtime_ns)
            assert times[0] == times[1]
