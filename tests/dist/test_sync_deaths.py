"""Synchronous replicas as real processes: exact, also when workers come late, die or lag; and counted when dropped."""

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

PARTS = ('weights', 'bias', 'global_step')


def joined_run(steps: int, workers: int, twice: tuple[int, tuple[str, ...]] = (-1, ())) -> list[float]:
    """What one process arrives at on the joined batches, by plain numpy: SGD with momentum 0.5.

    twice: the step whose update those of PARTS get two times that are named.
    """
    weights, bias, momentum, bias_momentum, step = np.zeros((SIZE, 1)), 0.0, np.zeros((SIZE, 1)), 0.0, 0
    while step < steps:
        batches = [batch(step, worker) for worker in range(workers)]
        inputs, targets = np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])
        error = (inputs @ weights)[:, 0] + bias - targets
        again = twice[1] if step == twice[0] else ()
        for _ in range(1 + ('weights' in again)):
            momentum = 0.5 * momentum + 2 * inputs.T @ error[:, None] / len(error)
            weights = weights - RATE * momentum
        for _ in range(1 + ('bias' in again)):
            bias_momentum = 0.5 * bias_momentum + 2 * error.mean()
            bias -= RATE * bias_momentum
        step += 1 + ('global_step' in again)
    return [*weights.ravel(), bias]


@pytest.mark.cluster
def test_exact_when_one_starts_late_and_dies(tmp_path):
    with ToyCluster(tmp_path, 2, 3, max_steps=50, sync=True, step_secs=0.02) as cluster:
        for task in cluster.tasks[:-1]:
            cluster.start(task)
        cluster.wait_line('worker 0', 'update 1 has 2 of 3 gradients: waiting for gradients of worker 2')
        cluster.start('worker 2')
        cluster.wait_step('worker 2', 20)
        cluster.kill('worker 2')
        cluster.start('worker 2')
        assert cluster.wait_exits() == [0] * 5
        step, weights = cluster.final()
        assert step == 50 and cluster.counts('contributed') == [50] * 3
        np.testing.assert_allclose(weights, joined_run(50, 3), atol=1e-5)


@pytest.mark.cluster
def test_exact_when_the_chief_dies(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=120, sync=True) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 30)
        cluster.kill('worker 0')
        died_at = cluster.steps('worker 0')[-1]
        cluster.start('worker 0')
        assert cluster.wait_exits() == [0] * 3
        possible = [joined_run(120, 2)]
        if 'within an update' in cluster.text('worker 0'):  # Then any part may have got that one update twice.
            possible += [joined_run(120, 2, (step, parts)) for step in range(died_at - 2, died_at + 3)
                         for number in (1, 2, 3) for parts in itertools.combinations(PARTS, number)]
        found = cluster.final()[1]
        assert any(np.allclose(found, weights, rtol=0, atol=1e-5) for weights in possible), found


@pytest.mark.cluster
def test_resume_learns_from_its_first_step(tmp_path):
    for last in (30, 60):
        with ToyCluster(tmp_path, 1, 2, max_steps=last, sync=True, step_secs=0.0) as cluster:
            cluster.start_all()
            assert cluster.wait_exits() == [0] * 3
            assert cluster.counts('contributed') == [30, 30] and cluster.counts('dropped') == [0, 0]
    np.testing.assert_allclose(cluster.final()[1], joined_run(60, 2), atol=1e-5)


@pytest.mark.cluster
def test_backup_goes_on_and_the_returning_contributes_at_once(tmp_path):
    with ToyCluster(tmp_path, 1, 3, max_steps=250, sync=True, aggregate=2, step_secs=0.03) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 2', 10)
        cluster.kill('worker 2')
        away = time.time()
        left = cluster.steps('worker 0')[-1]
        cluster.wait_step('worker 0', left + 100)
        cluster.start('worker 2')
        cluster.wait_step('worker 2', left, since=away)
        ready = cluster.wait_line('worker 2', 'session is ready', since=away)
        assert cluster.wait_exits() == [0] * 4
        back = cluster.steps('worker 2', since=ready)
        assert back[0] >= left + 100 and back[1] - back[0] <= 2
        contributed = cluster.counts('contributed')
        assert sum(contributed) == 2 * 250
        assert contributed[2] >= 5 + len(back) // 4
        cluster.check_clean('worker 0', 'worker 1', 'worker 2')


@pytest.mark.cluster
def test_a_checkpoint_under_backups_bears_the_step_that_is_inside(tmp_path):
    """While the chief saves, the two others have all that an update needs."""
    with ToyCluster(tmp_path, 1, 3, max_steps=60, sync=True, aggregate=2, step_secs=0.01, save_secs=0.5,
                    save_takes=0.3) as cluster:
        cluster.start_all()
        assert cluster.wait_exits() == [0] * 4
        paths = [str(path)[:-6] for path in cluster.train_dir.glob('*.index')]
        assert len(paths) >= 2
        inside = {path: tf.train.load_checkpoint(path).get_tensor('global_step') for path in paths}
        assert all(path.endswith(f'-{step}') for path, step in inside.items()), inside


@pytest.mark.cluster
def test_strict_gives_up_on_a_worker_gone_for_good(tmp_path):
    with ToyCluster(tmp_path, 1, 2, max_steps=10000, sync=True, lost_secs=5, idle_secs=6) as cluster:
        cluster.start_all()
        cluster.wait_step('worker 1', 5)
        cluster.kill('worker 1')
        assert cluster.wait_exits('worker 0', limit=30) == [138]
        assert 'the chief gave up after 5 s without gradients of worker 1' in cluster.text('worker 0')
        assert cluster.wait_exits('ps 0', limit=30) == [138]


@pytest.mark.cluster
def test_backup_counts_the_slow(tmp_path):
    with ToyCluster(tmp_path, 1, 3, max_steps=60, sync=True, aggregate=2) as cluster:
        for task in cluster.tasks[:-1]:
            cluster.start(task)
        cluster.start('worker 2', step_secs=1.0)
        assert cluster.wait_exits() == [0] * 4
        contributed, dropped = cluster.counts('contributed'), cluster.counts('dropped')
        assert contributed[2] <= 2 and dropped[2] > 0 and max(dropped[:2]) <= 2


@pytest.mark.cluster
@pytest.mark.parametrize('repetition', range(3))
def test_end_is_clean(tmp_path, repetition):
    with ToyCluster(tmp_path, 1, 3, max_steps=50, sync=True, step_secs=0.0, jitter_secs=0.05) as cluster:
        cluster.start_all()
        assert cluster.wait_exits() == [0] * 4
        last = max(cluster.lines(f'worker {k}')[-1][0] for k in range(3))
        assert cluster.lines('ps 0')[-1][0] - last < 15
        cluster.check_clean()
        assert cluster.final()[0] == 50 and cluster.counts('contributed') == [50] * 3
