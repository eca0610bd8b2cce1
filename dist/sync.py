"""Synchronous replicas: each update averages one gradient of each of a fixed number of workers.

How it works. On the ps, beside each variable, every worker has a slot of its own for its gradient. A
worker fills its slots, then marks on ps 0 that its gradient for the present *ticket* is complete. The
chief waits until enough workers have marked, applies the mean of their slots, and moves the ticket on;
only then do they compute again.

Why not TensorFlow's SyncReplicasOptimizer. Its accumulators add up whatever arrives: the half gradient of
a worker that died while pushing stays in them, so its return breaks the count; its token queue hands a
worker that was away the tokens of all the steps that it missed; and its start tokens let one worker
contribute twice. A slot is only ever overwritten by its owner, and a mark either equals the ticket or
does not count, so here every step can be tried again by whoever was killed at whatever point. The price is
memory: one gradient per worker on the ps. (One per worker is also what asynchronous training holds
there when all workers push at once.)

The ticket, not global_step, says which round it is: it never repeats. After a restore it starts from
the clock, so that a mark from before, or a gradient still under way, cannot fit a later round.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dist.board import Cell
from inception_mg.errors import EXIT_RETRY, UserError

v1 = tf.compat.v1
Log = Callable[[str], None]
WAKE_SECS = 1.0  # No wait in TensorFlow lasts longer: in between, signals and the cluster are looked at.


class SyncReplicas:
    """Wraps an optimizer: `apply_gradients` pushes, and the chief's `hook` applies.

    replicas_to_aggregate: gradients per update, at most num_workers; with fewer, the others are backups
    and their late gradients are dropped and counted. worker_index: 0 is the chief. last_step: the
    chief makes no update beyond it. device: holds the marks. check: called about once a second while
    waiting; raises what should end the wait. stop: whether a signal asked to end. give_up_secs: the
    chief gives up (UserError with EXIT_RETRY) when an update lacks gradients for so long. Every worker
    builds the same graph. Raises ValueError for counts out of range.

    After apply_gradients: `hook`, for MonitoredSession, before any hook that reads global_step;
    `reset_op`, which the chief runs whenever it initialises or restores; `contributed` and `dropped`,
    int64 [num_workers], gradients of each worker that were used and that came too late.
    """

    def __init__(self, optimizer, replicas_to_aggregate: int, num_workers: int, worker_index: int,
                 last_step: int, device: str = '/job:ps/task:0/device:CPU:0', *,
                 check: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False,
                 log: Log = print, status_secs: float = 10.0, give_up_secs: float = float('inf')):
        if not 1 <= replicas_to_aggregate <= num_workers:
            raise ValueError(f'cannot average {replicas_to_aggregate} gradients of {num_workers} workers')
        self.replicas_to_aggregate, self.num_workers = replicas_to_aggregate, num_workers
        self.worker_index, self.last_step = worker_index, last_step
        self.check, self.stop, self.log = check, stop, log
        self.status_secs, self.give_up_secs = status_secs, give_up_secs
        self._optimizer, self._device = optimizer, device

    def apply_gradients(self, grads_and_vars: Sequence[tuple[tf.Tensor, tf.Variable]],
                        global_step: tf.Variable, name: str | None = None) -> tf.Operation:
        """Returns the operation that pushes this worker's gradient for the ticket in hand.

        The wrapped optimizer's apply_gradients(means, global_step) is built too, free of the control
        dependencies around this call: it runs in a step of its own, on the chief.
        """
        pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars if g is not None]
        self.global_step = global_step
        with tf.control_dependencies(None), tf.name_scope('sync_state'):
            self._build_state()
            slots = [[Cell(f'sync/{worker}/{v.op.name}', v.dtype, v.shape, v.device)
                      for worker in range(self.num_workers)] for _, v in pairs]
        with tf.name_scope(name or 'sync_push'):
            push = self._build_push(pairs, slots)
        with tf.control_dependencies(None):
            self._build_update(pairs, slots)
        self.hook = _SyncHook(self)
        return push

    def _build_state(self) -> None:
        def cells(what: str) -> list[Cell]:
            return [Cell(f'sync/{what}/{worker}', tf.int64, device=self._device) for worker in range(self.num_workers)]

        with tf.device(None), v1.device(self._device):
            self.ticket_in_hand = v1.placeholder_with_default(tf.constant(-1, tf.int64), [], name='ticket_in_hand')
            self._ticket = Cell('sync/ticket', tf.int64, device=self._device)
            self._begun = Cell('sync/begun', tf.int64, device=self._device)
            self._marks, self._pushed, self._used = cells('mark'), cells('pushed'), cells('used')
            # Doorbells: they only shorten a wait. What is true is in the cells.
            self.arrivals = _Doorbell('sync/arrivals')
            self.departures = [_Doorbell(f'sync/departures/{worker}') for worker in range(self.num_workers)]
            self.ticket, self.begun = self._ticket.read(), self._begun.read()
            self.marks = tf.stack([cell.read() for cell in self._marks])
            self.contributed = tf.stack([cell.read() for cell in self._used])
            waiting = tf.cast(tf.equal(self.marks, self.ticket), tf.int64)
            self.dropped = tf.stack([cell.read() for cell in self._pushed]) - self.contributed - waiting
            # Microseconds: no faster than updates can be made, so later than any ticket used before.
            clock = tf.cast(tf.timestamp() * 1e6, tf.int64)
            self.reset_op = tf.group(self._ticket.write(clock), *(
                cell.write(-1) for cell in [self._begun, *self._marks]), *(
                cell.write(0) for cell in self._pushed + self._used))

    def _build_push(self, pairs, slots) -> tf.Operation:
        filled = [own[self.worker_index].write(gradient) for (gradient, _), own in zip(pairs, slots, strict=True)]
        with tf.control_dependencies(filled):  # A mark says that the whole gradient is there.
            marked = [self._marks[self.worker_index].write(self.ticket_in_hand), self._pushed[self.worker_index].add(1)]
        with tf.control_dependencies(marked):
            return tf.group(self.arrivals.build_ring())

    def _build_update(self, pairs, slots) -> None:
        with tf.device(None), v1.device(self._device):
            self.chosen = v1.placeholder(tf.bool, [self.num_workers], name='chosen')
            begin = self._begun.write(self.ticket)
        means = []
        with tf.control_dependencies([begin]), tf.name_scope('sync_mean'):
            for (gradient, variable), own in zip(pairs, slots, strict=True):
                with tf.device(None), v1.device(variable.device):
                    means.append((self._build_mean(gradient, own), variable))
        applied = self._optimizer.apply_gradients(means, self.global_step)
        with tf.control_dependencies([applied]), tf.device(None), v1.device(self._device):
            used = [cell.add(chosen) for cell, chosen in
                    zip(self._used, tf.unstack(tf.cast(self.chosen, tf.int64)), strict=True)]
            with tf.control_dependencies(used):
                moved = self._ticket.add(1)
            with tf.control_dependencies([moved]):
                self.update_op = tf.group(*(bell.build_ring() for bell in self.departures))

    def _build_mean(self, gradient, own: Sequence[Cell]) -> tf.Tensor:
        if self.replicas_to_aggregate == self.num_workers:
            return tf.add_n([cell.read() for cell in own]) / self.num_workers
        # A slot that was not chosen may be unfinished or never filled: it is not even read.
        chosen = tf.reshape(tf.where(self.chosen), [-1])
        reads = [lambda cell=cell: cell.read() for cell in own]
        return tf.add_n([tf.switch_case(tf.cast(chosen[k], tf.int32), reads)
                         for k in range(self.replicas_to_aggregate)]) / self.replicas_to_aggregate


class _Doorbell:
    """A queue that wakes one waiting task; ringing never blocks, and rings do not pile up."""

    def __init__(self, name: str):
        self._queue = v1.FIFOQueue(-1, tf.int32, [[]], shared_name=name, name=name.replace('/', '_'))
        self._wait = self._queue.dequeue()

    def build_ring(self) -> tf.Operation:
        """The operation that rings, unless a ring is waiting already."""
        with tf.device(None), v1.device(self._queue.queue_ref.device):
            missing = tf.cast(self._queue.size() < 1, tf.int32)
            return self._queue.enqueue_many(tf.fill([missing], 1))

    def wait(self, session: v1.Session) -> None:
        """Returns after a ring, or after WAKE_SECS."""
        try:
            session.run(self._wait, options=v1.RunOptions(timeout_in_ms=int(WAKE_SECS * 1000)))
        except tf.errors.DeadlineExceededError:
            pass


class _SyncHook(v1.train.SessionRunHook):
    """On every worker: waits after its push until the ticket has moved, and sums up how long. On the chief
    also: the thread that makes the updates."""

    def __init__(self, sync: SyncReplicas):
        self._sync, self._ticket_v, self._coord = sync, None, None
        self.waited = 0.0  # Seconds, in all sessions.

    def after_create_session(self, session, coord):
        self._ticket_v, self._coord = None, coord
        if self._sync.worker_index == 0:
            if len(set(session.run([self._sync.ticket, self._sync.begun]))) == 1:
                self._sync.log('the chief died within an update: a part of the variables may get it twice')
            thread = threading.Thread(target=_Updates(self._sync, session, coord).run, name='updates', daemon=True)
            thread.start()
            coord.register_thread(thread)

    def before_run(self, run_context):
        if self._ticket_v is None:  # An earlier life of this worker may have pushed for this ticket.
            self._wait(run_context, pushed=False)
        ticket_v = -1 if self._ticket_v is None else self._ticket_v
        return v1.train.SessionRunArgs([], {self._sync.ticket_in_hand: ticket_v})

    def after_run(self, run_context, run_values):
        self._wait(run_context, pushed=True)

    def _wait(self, run_context, pushed: bool) -> None:
        """Waits until this worker's mark is not the ticket's: then its gradient is wanted.

        Leaves no ticket in hand when it was stopped; a push without one does not count.
        """
        begun = time.monotonic()
        try:
            self._wait_since(begun, run_context, pushed)
        finally:
            self.waited += time.monotonic() - begun

    def _wait_since(self, begun: float, run_context, pushed: bool) -> None:
        sync, session = self._sync, run_context.session
        self._ticket_v, told = None, begun
        while not (sync.stop() or self._coord.should_stop()):
            if pushed:  # The ticket can hardly have moved yet: one look less per step.
                sync.departures[sync.worker_index].wait(session)
                sync.check()
            pushed = True
            ticket_v, marks_v, step_v = session.run([sync.ticket, sync.marks, sync.global_step])
            if step_v >= sync.last_step:
                run_context.request_stop()
                return
            if marks_v[sync.worker_index] != ticket_v:
                self._ticket_v = ticket_v
                return
            if sync.worker_index and time.monotonic() - told >= sync.status_secs:
                told = time.monotonic()
                sync.log(f'worker {sync.worker_index} is waiting for update {step_v + 1}, {told - begun:.0f} s')
        self._coord.raise_requested_exception()


class _Updates:
    """The chief's thread: applies an update whenever enough gradients for the ticket are there."""

    def __init__(self, sync: SyncReplicas, session: v1.Session, coord: tf.train.Coordinator):
        self._sync, self._session, self._coord = sync, session, coord
        self._since = self._told = time.monotonic()

    def run(self) -> None:
        """Until the last step, or until the session is given up."""
        with self._coord.stop_on_exception():
            while not self._coord.should_stop() and self._round():
                pass

    def _round(self) -> bool:
        sync = self._sync
        ticket_v, marks_v, used_v, step_v = self._session.run(
            [sync.ticket, sync.marks, sync.contributed, sync.global_step])
        if step_v >= sync.last_step:
            return False
        present = [worker for worker in range(sync.num_workers) if marks_v[worker] == ticket_v]
        if len(present) < sync.replicas_to_aggregate:
            self._tell(present, step_v)
            sync.arrivals.wait(self._session)
            return True
        # If more are there than needed, those who contributed least so far.
        chosen = sorted(present, key=lambda worker: used_v[worker])[:sync.replicas_to_aggregate]
        self._session.run(sync.update_op, {sync.chosen: np.isin(np.arange(sync.num_workers), chosen)})
        self._since = self._told = time.monotonic()
        return True

    def _tell(self, present: Sequence[int], step_v: int) -> None:
        now, sync = time.monotonic(), self._sync
        missing = ', '.join(str(worker) for worker in range(sync.num_workers) if worker not in present)
        if now - self._since > sync.give_up_secs:
            raise UserError(f'the chief gave up after {now - self._since:.0f} s without gradients of worker {missing}',
                            EXIT_RETRY)
        if now - self._told >= sync.status_secs:
            self._told = now
            sync.log(f'update {step_v + 1} has {len(present)} of {sync.replicas_to_aggregate} gradients: waiting for '
                     f'gradients of worker {missing}, {now - self._since:.0f} s')
