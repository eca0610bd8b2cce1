"""Whether the others reach this task at the address that the host lists give it.

A ps fetches gradients from a worker, and another ps's values, at the address in its own list. A task that runs on
another machine than its entry says can call everybody and be called by nobody; or its entry leads to another process.
"""

import tensorflow as tf

from dist.board import Board, Cell, session_config
from dist.hosts import Cluster, split_address
from dist.stale import is_here
from inception_mg.bounded import bounded
from inception_mg.errors import UserError

v1 = tf.compat.v1
CALL_SECS = 5.0


class WrongMachine(UserError):
    """The entry of this task in the host lists leads to another process."""


def unreached(cluster: Cluster, target: str, hub: Board, life: int | str) -> str:
    """Has the hub call this task at its entry in the host lists; returns '' if it does, else what to wait for.

    target: of this task's own server. life: what no other process has. Raises WrongMachine if somebody else
    answers there, on another machine, Unreachable if the hub does not answer.
    """
    task, found = f'{cluster.task}/device:CPU:0', []
    with tf.Graph().as_default() as graph:
        cell = Cell('board/life', tf.string, device=task)
        write, read = cell.write(str(life)), cell.read()
    with v1.Session(target, graph=graph, config=session_config(CALL_SECS)) as session:
        session.run(write)

    def call() -> None:
        job, _, index = hub.name.partition(' ')
        config = session_config(CALL_SECS, f'/job:{job}/task:{index}', cluster.task)
        with v1.Session(f'grpc://{hub.address}', graph=graph, config=config) as session:
            found.append(session.run(read).decode())

    try:
        bounded(call, 2 * CALL_SECS)
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):  # A server that does not have the cell.
        found.append('')
    except tf.errors.OpError:
        hub.card()  # Unreachable: then it says nothing about this task.
    if found == [str(life)]:
        return ''
    entry = f'{cluster.address}, its entry in --{cluster.job}_hosts'
    if found and not is_here(split_address(cluster.address, cluster.name)[0]):
        raise WrongMachine(f'{cluster.name} is not at {entry}: another process answers there; start it on that '
                           'machine, or give every task a list with the address of this one')
    if found:
        return f'{hub.name} to reach it at {entry} (it still reaches another process there)'
    return f'{hub.name} to reach it at {entry} (is it started on another machine?)'
