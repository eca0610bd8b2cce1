"""A parameter server's task: hold the board of the cluster, and serve until the job is over."""

import time
from collections.abc import Callable

import tensorflow as tf

from dist import verdict
from dist.board import Board, Unreachable, check_card, connect_boards
from dist.hosts import Cluster
from dist.reach import unreached
from dist.verdict import ServingSeen, Silence, is_over

EVERY_SECS = 0.3  # A look at its own board costs nothing.


def serve(cluster: Cluster, server: tf.distribute.Server, idle_secs: float = 600.0,
          stop: Callable[[], bool] = lambda: False, log: Callable[[str], None] = print,
          one_client: bool = False) -> int:
    """Serves until the job is over and returns this serving task's exit code: see verdict.decide_serving.

    one_client: the chief alone builds a graph and beats; this task may then be a worker too. idle_secs: how long it
    serves without hearing of any worker. Raises UserError if the hub, the first of the serving tasks, has other lists.
    """
    boards = connect_boards(cluster, one_client)
    mine = [board.address for board in boards].index(cluster.address)
    clients = boards[0].clients
    own = Board(cluster.name, cluster.address, clients, len(boards), server.target, timeout=0.0)
    life = own.setup(cluster.lists)
    hub = own if mine == 0 else boards[0]
    log(f'{cluster.name} is ready for ' + ('the chief' if one_client else f'{clients} workers'))
    known = hub is own
    silence, beats, asked, over, next_call = Silence(clients), [0] * clients, 0.0, 0.0, 0.0
    while True:
        now = time.monotonic()
        if now >= next_call:
            next_call = now + (EVERY_SECS if hub is own else verdict.BEAT_SECS)
            try:
                if not known:
                    check_card(cluster, hub, hub.card())
                    if whom := unreached(cluster, server.target, hub, life):
                        log(f'{cluster.name} waits for {whom}')
                    known = True
                beats = hub.enlist(mine, life).beats
            except Unreachable:  # Then nobody is heard of. It may come back as the hub of another cluster.
                known = False
        reports, silent = own.reports(), silence.update(beats)
        asked = asked or now if stop() else 0.0
        over = over or now if is_over(reports) else 0.0
        seen = ServingSeen(cluster.name, reports, beats, silent, silence.heard, now - asked if asked else 0.0,
                           now - over if over else 0.0, one_client, idle_secs)
        what = verdict.decide_serving(seen)
        if what.do == verdict.END:
            if what.line:
                log(what.line)
            return what.code
        time.sleep(EVERY_SECS)
