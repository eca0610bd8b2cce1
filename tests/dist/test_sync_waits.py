"""What a synchronous worker and the chief's thread do and say while they wait, by a made-up clock."""

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


@pytest.fixture
def waiting(monkeypatch):
    """A worker 1 of 2 at a ticket 7, by a clock that each wait moves on by a second; `looks` is what it sees in turn."""
    clock, said = [100.0], SimpleNamespace(lines=[], checks=0, stopped=0)
    monkeypatch.setattr(sync_lib, 'time', SimpleNamespace(monotonic=lambda: clock[0]))

    def look(looks, wait):
        if wait:
            clock[0] += 1
            said.checks += 1
        return next(looks)

    def stop():
        said.stopped += 1

    said.sync = SimpleNamespace(
        stop=lambda: False, departure=SimpleNamespace(look=look), worker_index=1, last_step=10,
        num_workers=3, replicas_to_aggregate=2, status_secs=10.0, give_up_secs=30.0, log=said.lines.append, ticket=0,
        begun=0)
    said.clock = clock
    said.context = lambda looks: SimpleNamespace(session=iter(looks), request_stop=stop)
    said.hook = sync_lib._SyncHook(said.sync)
    said.hook._coord = SimpleNamespace(should_stop=lambda: False, raise_requested_exception=lambda: None)
    return said


def test_a_worker_looks_after_each_bell_and_says_at_times_that_it_waits(waiting):
    waiting.hook._wait(waiting.context([(7, 4, 7)] * 25 + [(8, 5, 7)]), pushed=False)
    assert waiting.lines == [f'worker 1 is waiting for update 5, {seconds} s' for seconds in (10, 20)]
    assert waiting.checks == 25 and waiting.hook.waited == 25 and waiting.stopped == 0
    assert waiting.hook._ticket_v == 8


def test_a_worker_ends_at_the_last_step_without_a_ticket(waiting):
    waiting.hook._wait(waiting.context([(7, 10, 7)]), pushed=True)
    assert waiting.stopped == 1 and waiting.hook._ticket_v == -1


def test_the_chief_names_who_is_missing_at_times_and_then_gives_up(waiting):
    updates = sync_lib._Updates(waiting.sync, None, None)
    for _ in range(30):
        waiting.clock[0] += 1
        updates._tell([1], 4)
    assert waiting.lines == [f'update 5 has 1 of 2 gradients: waiting for gradients of worker 0, 2, {seconds} s'
                             for seconds in (10, 20, 30)]
    waiting.clock[0] += 1
    with pytest.raises(UserError, match='the chief gave up after 31 s without gradients of worker 0, 2'):
        updates._tell([1], 4)


@pytest.mark.parametrize('begun', [6, 7])
def test_a_chief_that_died_within_an_update_says_so(waiting, begun):
    waiting.sync.worker_index, coord = 0, tf.train.Coordinator()
    coord.request_stop()  # Its thread has nothing to do here.
    waiting.hook.after_create_session(SimpleNamespace(run=lambda fetches: [7, begun]), coord)
    coord.join()
    assert [line for line in waiting.lines if 'died within an update' in line] == waiting.lines
    assert len(waiting.lines) == (begun == 7)
