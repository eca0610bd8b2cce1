"""Way 5 of running: workers with two towers each, synchronous, give the losses and weights of slow numpy, every
operation on its device, and bytes between machines as predicted. Servers of this process, no processes.
"""

import numpy as np
import pytest
import tensorflow as tf

from inception_mg.training.task import Task
import toy_model
from forms import FAST

from dist.launch.local import free_ports
from dist.sync import SyncReplicas
from inception_mg.config import OptimizerConfig
from inception_mg.fast.operations import PLAIN
from inception_mg.placement import between_graph, multi_gpu, split_model
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
BATCH, STEPS, WORKERS, DECAY = 8, 6, 2, 0.9
OPERATIONS = [FAST, PLAIN]  # Of each worker: they need not be equal.
CPUS = ['/device:CPU:0', '/device:CPU:1']
MACHINES = {'2 towers': multi_gpu(CPUS), 'branches': split_model([CPUS], 'branches')}


class Cluster:
    """Two ps and two workers; each worker has half of the toy's examples."""

    def __init__(self, towers):
        ports = free_ports(2 + WORKERS)
        hosts = [f'127.0.0.1:{port}' for port in ports]
        spec = {'ps': hosts[:2], 'worker': hosts[2:]}
        config = v1.ConfigProto(device_count={'CPU': 2}, allow_soft_placement=False)
        self.ps = [tf.distribute.Server(spec, 'ps', k, config=config) for k in range(2)]
        self.servers = [tf.distribute.Server(spec, 'worker', k, config=config) for k in range(WORKERS)]
        self.towers = len(towers)
        self.parts = [self._build(k, towers, config) for k in range(WORKERS)]

    def _build(self, index, towers, config) -> dict:
        wrapped = []

        def synchronous(optimizer):
            wrapped.append(SyncReplicas(optimizer, WORKERS, WORKERS, index, 1000))
            return wrapped[0]

        def dataset_for(first, readers, batch_size):
            return toy_model.dataset_for(BATCH)(index * readers + first, WORKERS * readers, batch_size)

        with tf.Graph().as_default() as graph:
            task = Task(dataset_for, toy_model.toy_loss, BATCH, BATCH // WORKERS,
                        OptimizerConfig(moving_average_decay=DECAY), toy_model.make_optimizer,
                        operations=OPERATIONS[index])
            step = build_train_step(between_graph(2, index, towers), task, aggregated=WORKERS,
                                    wrap_optimizer=synchronous)
            variables, init = v1.global_variables(), v1.global_variables_initializer()
        session = v1.Session(self.servers[index].target, graph=graph, config=config)
        return {'step': step, 'sync': wrapped[0], 'session': session, 'variables': variables, 'init': init,
                'graph': graph}

    def run(self, steps: int) -> tuple[list[float], list[dict]]:
        """Mean loss of the workers before each update, and all values after it."""
        chief = self.parts[0]
        chief['session'].run(chief['init'])
        chief['session'].run(chief['sync'].reset_op)
        for part in self.parts:
            part['session'].run(part['step'].start_input)
        losses, values = [], []
        for _ in range(steps):
            ticket = chief['session'].run(chief['sync'].ticket)
            losses.append(np.mean([part['session'].run([part['step'].loss, part['step'].train_op], {
                part['sync'].ticket_in_hand: ticket})[0] for part in self.parts]))
            chief['session'].run(chief['sync'].update_op, {chief['sync'].chosen: [True] * WORKERS})
            values.append(chief['session'].run({v.op.name: v for v in chief['variables']}))
        return losses, values


@pytest.fixture(scope='module', params=MACHINES)
def cluster(request):
    made = Cluster(MACHINES[request.param].towers)
    yield made
    for part in made.parts:
        part['session'].close()


def test_same_losses_weights_and_averages_as_numpy(cluster):
    losses_v, values_v = cluster.run(STEPS)
    losses, values = toy_model.numpy_run(BATCH, STEPS)
    np.testing.assert_allclose(losses_v, losses, rtol=1e-5)
    for name in toy_model.SHAPES:
        np.testing.assert_allclose(values_v[-1][name], values[name], rtol=1e-4, atol=1e-6, err_msg=name)
        average = toy_model.initial_weights()[name]
        for updates, value in enumerate(values_v, 1):  # Once per update, however many workers push.
            decay = min(DECAY, (1 + updates) / (10 + updates))
            average = decay * average + (1 - decay) * value[name]
        np.testing.assert_allclose(values_v[-1][name + '/ExponentialMovingAverage'], average, rtol=1e-4, atol=1e-6)
    assert values_v[-1]['global_step'] == STEPS


def test_statistics_are_moved_by_every_worker(cluster):
    """Each worker moves them once per step, by its last tower's part of the batch: they end between those parts."""
    _, values_v = cluster.run(60)
    inputs, _ = toy_model.data(BATCH)
    share = BATCH // WORKERS // cluster.towers
    seen = [np.tanh(inputs[k::WORKERS][-share:] @ values_v[-1]['left/weights']).mean(axis=0) for k in range(WORKERS)]
    np.testing.assert_allclose(values_v[-1]['statistic'], np.mean(seen, axis=0), atol=0.06)


def test_every_operation_is_on_a_ps_or_on_its_worker_and_weights_cross_once(cluster):
    cluster.run(1)
    for index, part in enumerate(cluster.parts):
        metadata = v1.RunMetadata()
        part['session'].run(part['step'].train_op, options=v1.RunOptions(output_partition_graphs=True),
                            run_metadata=metadata)
        nodes = [node for graph in metadata.partition_graphs for node in graph.node]
        tasks = {tf.DeviceSpec.from_string(node.device).replace(replica=None, device_type=None, device_index=None)
                 .to_string() for node in nodes}
        assert tasks == {'/job:ps/task:0', '/job:ps/task:1', f'/job:worker/task:{index}'}
        pulled = [node for node in nodes if node.op == '_Recv' and '/job:ps' in node.attr['send_device'].s.decode()
                  and '/job:worker' in node.attr['recv_device'].s.decode()
                  and node.attr['tensor_type'].type == tf.float32.as_datatype_enum]
        fetched = [node for node in pulled if 'fetch' in node.attr['tensor_name'].s.decode()]
        assert len(fetched) == (2 if OPERATIONS[index] is FAST else len(toy_model.SHAPES))  # One of each ps, or all.
