"""A parameter server's task: hold the board of the cluster, and serve until the job is over."""

import time
from collections.abc import Callable

import tensorflow as tf

from dist.board import BEAT_SECS, DONE, ENDING, FAILED, RUNNING, Board, Silence, still_busy
from dist.hosts import Cluster
from inception_mg.errors import EXIT_FAILED, EXIT_RETRY, EXIT_SIGTERM

FAREWELL_SECS = 20.0  # So long after a signal a task serves on while the chief is at work.
GRACE_SECS = 6.0     # So long after the job's end a ps waits for workers that are just (re)starting.


def serve(cluster: Cluster, server: tf.distribute.Server, idle_secs: float = 600.0,
          stop: Callable[[], bool] = lambda: False, log: Callable[[str], None] = print,
          one_client: bool = False) -> int:
    """Serves until the job is over and returns this ps task's exit code.

    one_client: the chief alone builds a graph and beats; this task may then be a worker too.

    The job is over when the chief reports that it is done, or any worker that it failed; then this
    waits for the other workers' reports, but not for those that fall silent (a restarting one gets
    GRACE_SECS), and returns 0 or EXIT_FAILED. EXIT_RETRY when no worker has been heard of for `idle_secs`;
    EXIT_SIGTERM when stop() says so, but not before the chief has left too, or FAREWELL_SECS have passed: whoever
    ends a whole cluster signals all tasks at once, and the chief needs them to save.
    """
    clients = 1 if one_client else len(cluster.workers)
    board = Board(cluster.name, cluster.address, clients, server.target, timeout=0.0)
    board.setup(cluster.lists)
    silence = Silence(clients)
    log(f'{cluster.name} is ready for ' + ('the chief' if one_client else f'{clients} workers'))
    over_since = asked_since = None
    while True:
        view = board.view()
        silent = silence.update(view.beats)
        if stop():
            asked_since = asked_since or time.monotonic()
            at_work = view.reports[0] in (RUNNING, ENDING) and silence.heard[0] and silent[0] < 3 * BEAT_SECS
            if not at_work or time.monotonic() - asked_since > FAREWELL_SECS:
                return EXIT_SIGTERM
        failed = FAILED in view.reports
        if failed or view.reports[0] == DONE:
            over_since = over_since or time.monotonic()
            late = RUNNING in view.reports and time.monotonic() - over_since < GRACE_SECS
            if not late and not still_busy(view.reports, silent, view.beats):
                why = f'worker {view.reports.index(FAILED)} failed' if failed else 'the job is done'
                log(f'{cluster.name} ends: {why}')
                return EXIT_FAILED if failed else 0
        elif min(silent) > idle_secs:
            nobody = 'the chief has not' if one_client else 'no worker has'
            log(f'{cluster.name} ends: {nobody} been heard of for {idle_secs:g} s')
            return EXIT_RETRY
        time.sleep(0.3)
