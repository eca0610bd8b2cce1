"""What every task says of itself to whoever asks its server: which task of which cluster it is, and which versions.

It is one string in the task's own resources, written once when its server starts, and read by a session on that server
alone: so it answers whatever state the cluster is in, also for a worker, which has no board.
"""

import json
from collections.abc import Callable

import tensorflow as tf

from dist.board import Cell, session_config
from dist.hosts import Cluster
from inception_mg.placement import CPU
from inception_mg.version import version_line

v1 = tf.compat.v1
_NAME = 'introduction'


def introduce(cluster: Cluster, target: str) -> None:
    """Called once by each task, for its own server at `target`."""
    text = json.dumps({'task': cluster.name, 'lists': cluster.lists, 'version': version_line()})
    with tf.Graph().as_default(), tf.device(CPU):
        write = Cell(_NAME, tf.string, device=CPU).write(text)
        with v1.Session(target, config=session_config(0.0)) as session:
            session.run(write)


def build_introduction() -> tf.Tensor:
    """The string of the task whose session runs it; to be built in the graph of that session."""
    return Cell(_NAME, tf.string, device=CPU).read()


def other_versions(cluster: Cluster, say: Callable[[str], None], timeout: float = 5.0) -> None:
    """Warns of ps that run other versions than this task; one that does not answer is somebody else's to name."""
    own, others = version_line(), {}
    with tf.Graph().as_default() as graph:
        text = build_introduction()
    for index, address in enumerate(cluster.ps):
        try:
            with v1.Session(f'grpc://{address}', graph=graph, config=session_config(timeout)) as session:
                theirs = json.loads(session.run(text))['version']
        except (tf.errors.OpError, ValueError, KeyError):
            continue
        if theirs != own:
            others.setdefault(theirs, []).append(str(index))
    for theirs, indices in others.items():
        say(f'{cluster.name} runs {own}, but ps {", ".join(indices)} {theirs}: install the same everywhere')
