"""Synchronous replicas in one process: numbers, marks, doorbells and devices."""

import contextlib
import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cluster_harness import ToyCluster
from toy_task import RATE, SIZE, batch

from dist import sync as sync_lib
from dist.board import Cell
from dist.launch.local import free_ports
from dist.sync import SyncReplicas
from inception_mg.errors import UserError
from inception_mg.training.hooks import CheckpointHook
from inception_mg.training.loss_scale import LossScale

v1 = tf.compat.v1


class InProcess:
    """One ps and n workers as servers of this process: numbers and devices, no processes."""

    def __init__(self, num_workers: int, aggregate: int, last_step: int = 1000, scaled: bool = False,
                 gated: bool = False):
        self.scaled, self.gated = scaled, gated  # Scaled: by a loss scale that grows after two updates.
        ports = free_ports(num_workers + 1)
        spec = {'ps': [f'127.0.0.1:{ports[0]}'], 'worker': [f'127.0.0.1:{port}' for port in ports[1:]]}
        self.servers = [tf.distribute.Server(spec, 'ps', 0)] + [
            tf.distribute.Server(spec, 'worker', k) for k in range(num_workers)]
        self.workers = [self._build(k, num_workers, aggregate, last_step) for k in range(num_workers)]

    def _build(self, index: int, num_workers: int, aggregate: int, last_step: int) -> dict:
        with tf.Graph().as_default() as graph, v1.device('/job:ps/task:0/device:CPU:0'):
            step = v1.get_variable('global_step', [], tf.int64, v1.zeros_initializer(), trainable=False,
                                   use_resource=True)
            x = v1.get_variable('x', [2], initializer=v1.zeros_initializer(), use_resource=True)
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            if self.scaled:
                with v1.variable_scope('', use_resource=True):
                    optimizer = LossScale(8.0, growth_steps=2).wrap(optimizer)
            with v1.device(f'/job:worker/task:{index}/device:CPU:0'):
                gradient = v1.placeholder(tf.float32, [2])
                sync = SyncReplicas(optimizer, aggregate, num_workers, index, last_step, status_secs=1.0,
                                    log=lambda line: self.lines.append(line), **({'passed': Gate()} if self.gated else {}))
                push = sync.apply_gradients([(gradient, x)], step)
            init = v1.global_variables_initializer()
        self.lines: list[str] = []
        session = v1.Session(self.servers[index + 1].target, graph=graph)
        return {'graph': graph, 'session': session, 'sync': sync, 'push': push, 'gradient': gradient, 'x': x,
                'step': step, 'init': init}

    def reset(self):
        self.run(0, 'init')
        self.workers[0]['session'].run(self.workers[0]['sync'].reset_op)

    def run(self, worker: int, what: str):
        return self.workers[worker]['session'].run(self.workers[worker][what])

    def push(self, worker: int, value: float, ticket=None):
        """What a worker's step does."""
        parts = self.workers[worker]
        if ticket is None:
            ticket = parts['session'].run(parts['sync'].ticket)
        parts['session'].run(parts['push'], {parts['gradient']: [value, 2 * value],
                                             parts['sync'].ticket_in_hand: ticket})
        return ticket

    def counts(self):
        sync = self.workers[0]['sync']
        return [value.tolist() for value in self.workers[0]['session'].run([sync.contributed, sync.dropped])]

    def updates(self, seconds: float):
        """Lets the chief's thread work for a while."""
        with self.chief_at_work():
            time.sleep(seconds)

    @contextlib.contextmanager
    def chief_at_work(self):
        """Within, the chief's thread makes updates."""
        coord, parts = tf.train.Coordinator(), self.workers[0]
        thread = threading.Thread(target=sync_lib._Updates(parts['sync'], parts['session'], coord).run)
        thread.start()
        try:
            yield
        finally:
            coord.request_stop()
            thread.join()
        coord.raise_requested_exception()

    def close(self):
        for parts in self.workers:
            parts['session'].close()


@pytest.fixture(scope='module')
def strict():
    cluster = InProcess(3, 3)
    yield cluster
    cluster.close()


@pytest.fixture(scope='module')
def backup():
    cluster = InProcess(3, 2, last_step=3)
    yield cluster
    cluster.close()


def test_mean_of_one_gradient_each(strict):
    strict.reset()
    for worker, value in enumerate((3.0, 6.0, 0.0)):
        strict.push(worker, value)
    strict.updates(0.5)
    np.testing.assert_allclose(strict.run(1, 'x'), [-3.0, -6.0])
    assert strict.run(2, 'step') == 1 and strict.counts() == [[1, 1, 1], [0, 0, 0]]


def test_nobody_counts_twice_and_the_missing_is_named(strict):
    strict.reset()
    strict.lines.clear()
    strict.push(0, 1.0)
    for _ in range(3):  # Killed after its push and started again, three times.
        strict.push(1, 100.0)
    strict.updates(2.5)
    assert strict.run(0, 'step') == 0
    assert 'update 1 has 2 of 3 gradients: waiting for gradients of worker 2, 1 s' in strict.lines
    strict.push(1, 2.0)
    strict.push(2, 3.0)
    strict.updates(0.5)
    np.testing.assert_allclose(strict.run(0, 'x'), [-2.0, -4.0])


def test_half_a_gradient_of_the_dead_does_not_count(strict):
    strict.reset()
    with strict.workers[2]['graph'].as_default():
        half = Cell('sync/2/x', tf.float32, [2], '/job:ps/task:0/device:CPU:0').write([50.0, 50.0])
    strict.workers[2]['session'].run(half)  # The slot is filled, the mark is not set.
    strict.push(0, 0.0)
    strict.push(1, 0.0)
    strict.updates(0.5)
    assert strict.run(0, 'step') == 0
    strict.push(2, 3.0)
    strict.updates(0.5)
    np.testing.assert_allclose(strict.run(0, 'x'), [-1.0, -2.0])


def test_a_loss_scale_is_adapted_once_per_update():
    cluster = InProcess(2, 2, scaled=True)
    try:
        cluster.reset()
        with cluster.workers[0]['graph'].as_default():
            scale = next(v for v in v1.global_variables() if v.op.name == 'loss_scale')
            read = scale.read_value()
        seen = []
        for values in ((1, 3), (1, 3), (1, float('inf')), (1, 3)):
            for worker, value in enumerate(values):
                cluster.push(worker, value)
            cluster.updates(0.3)
            seen.append([float(cluster.workers[0]['session'].run(read)), int(cluster.run(1, 'step')),
                         cluster.run(1, 'x').tolist()])
        # The overflow is no update and moves nothing, but the workers are let go on.
        assert seen == [[8, 1, [-2, -4]], [16, 2, [-4, -8]], [8, 2, [-4, -8]], [8, 3, [-6, -12]]]
    finally:
        cluster.close()


def test_gradients_from_before_a_restore_do_not_count(strict):
    strict.reset()
    ticket = strict.push(0, 1.0)
    strict.reset()  # The chief restores; a gradient for the old state is still under way.
    strict.push(1, 1.0, ticket)
    strict.push(2, 1.0, ticket)
    strict.push(0, 1.0, ticket)
    strict.updates(0.5)
    assert strict.run(0, 'step') == 0
    strict.push(0, 1.0, -1)  # Stopped while it waited: no ticket in hand.
    strict.updates(0.3)
    assert strict.run(0, 'step') == 0


def test_update_touches_only_the_ps(strict):
    assert_on_ps(strict, [True] * 3)


def test_update_with_backups_touches_only_the_ps(backup):
    assert_on_ps(backup, [True, False, True])


def assert_on_ps(cluster, chosen):
    """No gradient or weight leaves the ps for an update."""
    cluster.reset()
    for worker in range(3):
        cluster.push(worker, float(worker))
    parts, metadata = cluster.workers[0], v1.RunMetadata()
    parts['session'].run(parts['sync'].update_op, {parts['sync'].chosen: chosen},
                         v1.RunOptions(output_partition_graphs=True), metadata)
    names = [node.name for graph in metadata.partition_graphs for node in graph.node]
    assert any('Mean' in name or 'sync_mean' in name for name in names)
    moved = [node.name for graph in metadata.partition_graphs for node in graph.node
             if node.op in ('_Recv', '_HostRecv', '_Send', '_HostSend')
             and node.attr['tensor_type'].type == tf.float32.as_datatype_enum]
    assert all('learning_rate' in name for name in moved), moved
    expected = sum(worker * used for worker, used in enumerate(chosen)) / sum(chosen)
    np.testing.assert_allclose(cluster.run(0, 'x'), [-expected, -2 * expected])


def test_backup_drops_the_late_and_counts_it(backup):
    backup.reset()
    for _ in range(2):
        ticket = backup.push(0, 1.0)
        backup.push(2, 3.0)
        backup.updates(0.5)
        backup.push(1, 1000.0, ticket)  # Late: the update was made without it.
    np.testing.assert_allclose(backup.run(0, 'x'), [-4.0, -8.0])
    assert backup.counts() == [[2, 0, 2], [0, 2, 0]]


def test_backup_prefers_who_contributed_least_and_ends_at_the_last_step(backup):
    backup.reset()
    for _ in range(6):
        for worker in range(3):
            backup.push(worker, 1.0)
        backup.updates(0.3)
    assert backup.run(0, 'step') == 3
    assert backup.counts()[0] == [2, 2, 2]


def test_a_bell_shortens_a_wait_and_who_hears_none_looks_all_the_same(strict, monkeypatch):
    """Rings do not pile up, and the one that was not wanted is none."""
    strict.reset()
    checks, chief, session = [], strict.workers[0]['sync'], strict.workers[0]['session']
    monkeypatch.setattr(sync_lib, 'WAKE_SECS', 0.2)
    monkeypatch.setattr(chief.arrivals, '_check', lambda: checks.append(1))
    while not checks:  # What other tests have left.
        chief.arrivals.look(session, wait=True)
    for worker in range(3):
        assert len(checks) == 1 + worker  # Nobody rings before the third.
        ticket = strict.push(worker, 1.0)
        seen = chief.arrivals.look(session, wait=True)
        assert seen[0] == ticket and list(seen[2:5]).count(ticket) == worker + 1
    assert len(checks) == 3
    for worker in range(3):
        strict.push(worker, 1.0)  # Three more that make it enough, and one ring.
    for heard in (True, False):
        before = len(checks)
        chief.arrivals.look(session, wait=True)
        assert (len(checks) == before) == heard


def test_only_the_chief_knows_all_slots(strict, backup):
    """The graph of a worker, and what it does in a step, is the same however many workers there are."""
    few = InProcess(2, 2)
    try:
        sizes = [len(cluster.workers[1]['graph'].get_operations()) for cluster in (few, strict, backup)]
        assert len(set(sizes)) == 1
        per_worker = len(strict.workers[0]['graph'].get_operations()) - len(few.workers[0]['graph'].get_operations())
        assert 0 < per_worker < 20
    finally:
        few.close()


class LateSaver(v1.train.Saver):
    """Calls `first` between the look at the step and the file."""

    first = None

    def save(self, session, *args, **kwargs):
        self.first()
        return super().save(session, *args, **kwargs)


def test_a_checkpoint_holds_one_update_and_the_next_one_waits(strict, tmp_path):
    def push_all():
        for worker in range(3):
            strict.push(worker, 1.0)

    def push_and_wait():
        push_all()
        time.sleep(0.5)  # Long enough for an update.

    strict.reset()
    parts = strict.workers[0]
    with parts['graph'].as_default(), tf.device('/job:worker/task:0/device:CPU:0'):
        saver = LateSaver([parts['step'], parts['x']])
        hook = CheckpointHook(saver, [parts['x']], parts['step'], str(tmp_path), 1e6, strict.lines.append,
                              around=lambda: parts['sync'].updating)
    saver.first = push_and_wait
    hook.after_create_session(parts['session'], None)
    with strict.chief_at_work(), parts['graph'].as_default():
        push_all()
        for step in (1, 2):
            wait_for(lambda step=step: strict.run(1, 'step') == step)
            hook.end(parts['session'])
        wait_for(lambda: strict.run(1, 'step') == 3)
    for step in (1, 2):
        saved = tf.train.load_checkpoint(str(tmp_path / f'model.ckpt-{step}'))
        assert saved.get_tensor('global_step') == step and saved.get_tensor('x').tolist() == [-step, -2 * step]


def test_no_update_begins_while_the_lock_is_held_and_one_in_progress_ends_first(strict):
    strict.reset()
    updating = strict.workers[0]['sync'].updating
    for worker in range(3):
        strict.push(worker, 3.0)
    with contextlib.ExitStack() as work:
        with updating:
            work.enter_context(strict.chief_at_work())
            time.sleep(0.5)
            assert strict.run(1, 'step') == 0 and strict.run(1, 'x').tolist() == [0, 0]
        wait_for(lambda: strict.run(1, 'step') == 1)
        with updating:
            assert strict.run(1, 'x').tolist() == [-3, -6]


def wait_for(what):
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Gate:
    """Lets a worker write until `closed`; notes where it was asked for."""

    def __init__(self):
        self.closed, self.devices = v1.placeholder_with_default(False, []), []

    def __call__(self, tensor: tf.Tensor, device: str) -> tf.Tensor:
        self.devices.append(device)
        with v1.device(device), tf.control_dependencies([tensor]):
            gate = tf.raw_ops.Assert(condition=tf.logical_not(self.closed), data=['not the one any more'])
            with tf.control_dependencies([gate]):
                return tf.identity(tensor)


def test_behind_a_closed_gate_nothing_is_written():
    cluster = InProcess(2, 2, gated=True)
    try:
        cluster.reset()
        for worker in range(2):
            cluster.push(worker, 1.0)
        cluster.updates(0.5)
        assert cluster.run(1, 'x').tolist() == [-1, -2]
        chief, worker = cluster.workers
        assert chief['sync']._passed.devices and set(chief['sync']._passed.devices) == {'/job:ps/task:0/device:CPU:0'}
        looks = [chief['sync'].arrivals.look(chief['session'], wait=False).tolist()]
        ticket = chief['session'].run(chief['sync'].ticket)
        for parts in cluster.workers:
            feed = {parts['gradient']: [9, 9], parts['sync'].ticket_in_hand: ticket, parts['sync']._passed.closed: True}
            with pytest.raises(tf.errors.InvalidArgumentError, match='not the one any more'):
                parts['session'].run(parts['push'], feed)
            with parts['graph'].as_default():
                slot = Cell(f'sync/{parts["sync"].worker_index}/x', tf.float32, [2], '/job:ps/task:0/device:CPU:0').read()
            assert parts['session'].run(slot).tolist() == [1, 2]
        looks.append(chief['sync'].arrivals.look(chief['session'], wait=False).tolist())
        assert looks[0] == looks[1]  # No mark was set.
        for worker in range(2):
            cluster.push(worker, 5.0)
        with pytest.raises(tf.errors.InvalidArgumentError, match='not the one any more'):
            chief['session'].run(chief['sync'].update_op, {chief['sync'].chosen: [True] * 2,
                                                           chief['sync']._passed.closed: True})
        assert cluster.run(1, 'x').tolist() == [-1, -2] and cluster.run(1, 'step') == 1
        assert chief['session'].run(chief['sync'].ticket) == ticket
        assert chief['session'].run(chief['sync'].begun) == ticket - 1
        cluster.updates(0.5)
        assert cluster.run(1, 'x').tolist() == [-6, -12]
    finally:
        cluster.close()


def test_counts_out_of_range():
    with pytest.raises(ValueError, match='cannot average 3 gradients of 2 workers'):
        SyncReplicas(None, 3, 2, 0, 10)
