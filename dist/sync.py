"""Synchronous replicas: each update averages one gradient of each of a fixed number of workers.

How it works. On the ps, beside each variable, every worker has a slot of its own for its gradient. A worker fills its
slots, then marks on ps 0 that its gradient for the present *ticket* is complete. When enough have marked, the chief
applies the mean of their slots and moves the ticket on; only then do they compute again. A round costs each worker
one call besides its step, and the chief two.

Why not TensorFlow's SyncReplicasOptimizer. Its accumulators add up whatever arrives: the half gradient of a worker
that died while pushing stays in them, so its return breaks the count; its token queue hands a worker that was away
the tokens of all the steps that it missed; and its start tokens let one worker contribute twice. A slot is only ever
overwritten by its owner, and a mark either equals the ticket or does not count, so here every step can be tried again
by whoever was killed at whatever point. The price is memory: one gradient per worker. (As many are there when
asynchronous workers push at once.) More ps divide it. Fewer places, used in turns, would let the rest of a dead
worker's push fall into another's gradient.

The ticket, not global_step, says which round it is: it never repeats. After a restore it starts from the clock, so
that a mark from before, or a gradient still under way, cannot fit a later round.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dist.board import Cell
from inception_mg.errors import EXIT_RETRY, UserError

v1 = tf.compat.v1
WAKE_SECS = 1.0  # No wait in TensorFlow lasts longer: in between, signals and the cluster are looked at.


class SyncReplicas:
    """Wraps an optimizer: `apply_gradients` pushes, and the chief's `hook` applies.

    replicas_to_aggregate: gradients per update, at most num_workers; with fewer, the others are backups and their
    late gradients are dropped and counted. worker_index: 0 is the chief. last_step: the chief makes no update beyond
    it. device: holds the marks. check: called about once a second while waiting; raises what should end the wait.
    stop: whether a signal asked to end. give_up_secs: the chief gives up (UserError with EXIT_RETRY) when an update
    lacks gradients for so long. passed(tensor, device): builds the tensor that has come to the device, if this task
    may still write there: see Fence. Every worker makes the same variables. Raises ValueError for counts out of range.

    After apply_gradients: `hook`, for MonitoredSession, before any hook that reads global_step; `reset_op`, which the
    chief runs whenever it initialises or restores; `contributed` and `dropped`, int64 [num_workers], gradients of
    each worker that were used and that came too late. While the chief holds the lock `updating` it makes no update.
    """

    def __init__(self, optimizer, replicas_to_aggregate: int, num_workers: int, worker_index: int,
                 last_step: int, device: str = '/job:ps/task:0/device:CPU:0', *,
                 check: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False,
                 log: Callable[[str], None] = print, status_secs: float = 10.0, give_up_secs: float = float('inf'),
                 passed: Callable[[tf.Tensor, str], tf.Tensor] = lambda tensor, device: tensor):
        if not 1 <= replicas_to_aggregate <= num_workers:
            raise ValueError(f'cannot average {replicas_to_aggregate} gradients of {num_workers} workers')
        self.replicas_to_aggregate, self.num_workers = replicas_to_aggregate, num_workers
        self.worker_index, self.last_step = worker_index, last_step
        self.check, self.stop, self.log = check, stop, log
        self.status_secs, self.give_up_secs = status_secs, give_up_secs
        self.updating = threading.Lock()
        self._optimizer, self._device, self._passed = optimizer, device, passed

    def apply_gradients(self, grads_and_vars: Sequence[tuple[tf.Tensor, tf.Variable]],
                        global_step: tf.Variable, name: str | None = None) -> tf.Operation:
        """Returns the operation that pushes this worker's gradient for the ticket in hand.

        The wrapped optimizer's apply_gradients(means, global_step) is built too, free of the control
        dependencies around this call: it runs in a step of its own, on the chief.
        """
        pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars if g is not None]
        self.global_step = global_step
        with tf.control_dependencies(None), tf.name_scope('sync_state'), tf.device(None), v1.device(self._device):
            self._build_state()
        with tf.control_dependencies(None):
            self._build_update([variable for _, variable in pairs])
        self.hook = _SyncHook(self)
        with tf.name_scope(name or 'sync_push'):
            return self._build_push(pairs)

    def _build_state(self) -> None:
        self.ticket_in_hand = v1.placeholder_with_default(tf.constant(-1, tf.int64), [], name='ticket_in_hand')
        self._ticket, self._begun = (Cell(f'sync/{name}', tf.int64, [], self._device) for name in ('ticket', 'begun'))
        self._marks, self._pushed, self._used = (
            Cell(f'sync/{name}', tf.int64, [self.num_workers], self._device) for name in ('marks', 'pushed', 'used'))
        self.ticket, self.begun, self.contributed = self._ticket.read(), self._begun.read(), self._used.read()
        waiting = tf.cast(tf.equal(self._marks.read(), self.ticket), tf.int64)
        self.dropped = self._pushed.read() - self.contributed - waiting
        # Microseconds: no faster than updates can be made, so later than any ticket used before.
        clock, zeros = tf.cast(tf.timestamp() * 1e6, tf.int64), tf.zeros([self.num_workers], tf.int64)
        self.reset_op = tf.group(self._ticket.write(clock), self._begun.write(-1), self._marks.write(zeros - 1),
                                 self._pushed.write(zeros), self._used.write(zeros))
        # Doorbells: they only shorten a wait. What is true is in the cells.
        self.arrivals = _Doorbell('sync/arrivals', lambda: tf.concat([
            [self._ticket.read(), self.global_step.read_value()], self._marks.read(), self._used.read()], 0))
        self.departure = _Doorbell(f'sync/departures/{self.worker_index}', lambda: tf.stack([
            self._ticket.read(), self.global_step.read_value(), self._marks.read()[self.worker_index]]), self.check)

    def _build_push(self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]]) -> tf.Operation:
        filled = [self._slot(self.worker_index, variable).write(self._passed(gradient, variable.device))
                  for gradient, variable in pairs]
        with tf.device(None), v1.device(self._device):
            with tf.control_dependencies(filled):  # A mark says that the whole gradient is there.
                marked = [self._marks.write_at(self.worker_index, self._passed(self.ticket_in_hand, self._device)),
                          self._pushed.add(tf.one_hot(self.worker_index, self.num_workers, dtype=tf.int64))]
            with tf.control_dependencies(marked):
                present = tf.math.count_nonzero(tf.equal(self._marks.read(), self._ticket.read()))
                return self.arrivals.build_ring(present >= self.replicas_to_aggregate)

    def _build_update(self, variables: Sequence[tf.Variable]) -> None:
        with tf.device(None), v1.device(self._device):
            self.chosen = v1.placeholder(tf.bool, [self.num_workers], name='chosen')
            numbers = tf.reshape(tf.where(self.chosen), [-1])
            begin = self._begun.write(self._passed(self.ticket, self._device))
        with tf.control_dependencies([begin]), tf.name_scope('sync_mean'):
            passed = {device: self._passed(numbers, device) for device in sorted({v.device for v in variables})}
            means = [(self._build_mean(variable, passed[variable.device]), variable) for variable in variables]
        applied = self._optimizer.apply_gradients(means, self.global_step)
        with tf.control_dependencies([applied]), tf.device(None), v1.device(self._device):
            used = self._used.add(tf.cast(self.chosen, tf.int64))
            with tf.control_dependencies([used]):
                moved = self._ticket.add(1)
            with tf.control_dependencies([moved]):
                self.update_op = tf.group(*(_Doorbell(f'sync/departures/{worker}').build_ring()
                                            for worker in range(self.num_workers) if self.worker_index == 0))

    def _build_mean(self, variable: tf.Variable, numbers: tf.Tensor) -> tf.Tensor:
        if self.worker_index:  # For the variables that the optimizer makes: this update is never run.
            return self._slot(self.worker_index, variable).read()
        with tf.device(None), v1.device(variable.device):
            # A slot that was not chosen may be unfinished or never filled: it is not even read.
            slots = tf.stack([self._slot(worker, variable).handle for worker in range(self.num_workers)])
            chosen = tf.unstack(tf.gather(slots, numbers), self.replicas_to_aggregate)
            total = tf.add_n([tf.raw_ops.ReadVariableOp(resource=slot, dtype=variable.dtype) for slot in chosen])
            return tf.ensure_shape(total, variable.shape) / len(chosen)

    def _slot(self, worker: int, variable: tf.Variable) -> Cell:
        return Cell(f'sync/{worker}/{variable.op.name}', variable.dtype, variable.shape, variable.device)


class _Doorbell:
    """A queue that wakes the one task that listens; ringing never blocks, and rings do not pile up.

    read: builds what that task looks at, in one piece. check: called before a look that no ring has brought about."""

    def __init__(self, name: str, read: Callable[[], tf.Tensor] = tf.no_op, check: Callable[[], None] = lambda: None):
        self._queue = v1.FIFOQueue(-1, tf.int32, [[]], shared_name=name, name=name.replace('/', '_'))
        self._now, self._check = read(), check
        with tf.control_dependencies([self._queue.dequeue()]):
            self._after_ring = read()

    def build_ring(self, wanted: tf.Tensor | bool = True) -> tf.Operation:
        """The operation that rings if `wanted`, unless a ring is waiting already."""
        missing = tf.cast(tf.logical_and(wanted, self._queue.size() < 1), tf.int32)
        return self._queue.enqueue_many(tf.fill([missing], 1))

    def look(self, session: v1.Session, wait: bool) -> np.ndarray:
        """The value of `read`: that of now, or after a ring, for which it waits WAKE_SECS at most."""
        if wait:
            with contextlib.suppress(tf.errors.DeadlineExceededError):
                return session.run(self._after_ring, options=v1.RunOptions(timeout_in_ms=int(WAKE_SECS * 1000)))
            self._check()
        return session.run(self._now)


class _SyncHook(v1.train.SessionRunHook):
    """Waits after a push until the ticket has moved, and sums up how long; starts the chief's thread."""

    def __init__(self, sync: SyncReplicas):
        self._sync, self._ticket_v, self._coord = sync, -1, None
        self.waited = 0.0  # Seconds, in all sessions.

    def after_create_session(self, session, coord):
        self._ticket_v, self._coord = -1, coord
        if self._sync.worker_index == 0:
            if len(set(session.run([self._sync.ticket, self._sync.begun]))) == 1:
                self._sync.log('the chief died within an update: a part of the variables may get it twice')
            thread = threading.Thread(target=_Updates(self._sync, session, coord).run, name='updates', daemon=True)
            thread.start()
            coord.register_thread(thread)

    def before_run(self, run_context):
        if self._ticket_v == -1:  # An earlier life of this worker may have pushed for this ticket.
            self._wait(run_context, pushed=False)
        return v1.train.SessionRunArgs([], {self._sync.ticket_in_hand: self._ticket_v})

    def after_run(self, run_context, run_values):
        self._wait(run_context, pushed=True)

    def _wait(self, run_context, pushed: bool) -> None:
        """Waits until this worker's mark is not the ticket's: then its gradient is wanted. Leaves -1 in hand when
        it was stopped: a push without a ticket does not count."""
        sync, self._ticket_v = self._sync, -1
        begun = told = time.monotonic()
        while not (sync.stop() or self._coord.should_stop()):
            ticket_v, step_v, mark_v = sync.departure.look(run_context.session, wait=pushed)
            if step_v >= sync.last_step:
                run_context.request_stop()
                break
            if mark_v != ticket_v:
                self._ticket_v = ticket_v
                break
            if sync.worker_index and time.monotonic() - told >= sync.status_secs:
                told = time.monotonic()
                sync.log(f'worker {sync.worker_index} is waiting for update {step_v + 1}, {told - begun:.0f} s')
            pushed = True
        self.waited += time.monotonic() - begun
        self._coord.raise_requested_exception()


class _Updates:
    """The chief's thread: applies an update whenever enough gradients for the ticket are there."""

    def __init__(self, sync: SyncReplicas, session: v1.Session, coord: tf.train.Coordinator):
        self._sync, self._session, self._coord = sync, session, coord
        self._since = self._told = time.monotonic()

    def run(self) -> None:
        """Until the last step, or until the session is given up."""
        with self._coord.stop_on_exception():
            going_on = self._round(wait=False)
            while going_on and not self._coord.should_stop():
                going_on = self._round(wait=True)

    def _round(self, wait: bool) -> bool:
        sync = self._sync
        ticket_v, step_v, *counts_v = sync.arrivals.look(self._session, wait)
        marks_v, used_v = np.split(np.array(counts_v), 2)
        if step_v >= sync.last_step:
            return False
        present = np.flatnonzero(marks_v == ticket_v)
        if len(present) < sync.replicas_to_aggregate:
            self._tell(present, step_v)
            return True
        # If more are there than needed, those who contributed least so far.
        chosen = sorted(present, key=lambda worker: used_v[worker])[:sync.replicas_to_aggregate]
        with sync.updating:
            self._session.run(sync.update_op, {sync.chosen: np.isin(np.arange(sync.num_workers), chosen)})
        self._since = self._told = time.monotonic()
        return True

    def _tell(self, present: Sequence[int], step_v: int) -> None:
        now, sync = time.monotonic(), self._sync
        lack = f'gradients of worker {", ".join(str(k) for k in range(sync.num_workers) if k not in present)}'
        if now - self._since > sync.give_up_secs:
            raise UserError(f'the chief gave up after {now - self._since:.0f} s without {lack}', EXIT_RETRY)
        if now - self._told >= sync.status_secs:
            self._told = now
            sync.log(f'update {step_v + 1} has {len(present)} of {sync.replicas_to_aggregate} gradients: waiting for '
                     f'{lack}, {now - self._since:.0f} s')
