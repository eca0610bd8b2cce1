"""A cluster in one process: a tf.distribute.Server per task, gRPC over loopback between them, clients as threads.

TensorFlow takes seconds to import, so sixteen workers as processes would mostly import. Each worker still has
its own server, graph and session, and its own part of the traffic.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from dist.experiments.waiting import threads
from dist.hosts import Cluster
from dist.in_graph import unfiltered_config
from dist.launch.local import free_ports
from dist.server import session_config

v1 = tf.compat.v1
MOST_WORKERS, MOST_PS = 16, 2


class Servers:
    """The servers. They cannot be stopped: they last as long as the process."""

    def __init__(self, num_ps: int, num_workers: int):
        addresses = [f'127.0.0.1:{port}' for port in free_ports(num_ps + num_workers)]
        self._ps, self._workers = tuple(addresses[:num_ps]), tuple(addresses[num_ps:])
        spec = {'ps': list(self._ps), 'worker': list(self._workers)}
        # TensorFlow's servers of one process share the threads that the first one asks for.
        config = threads(v1.ConfigProto(device_count={'GPU': 0}), 8 * num_workers + 16)
        self._servers = {(job, task): tf.distribute.Server(spec, job, task, config=config)
                         for job in spec for task in range(len(spec[job]))}

    def session(self, graph: tf.Graph, worker: int, everybody: bool = False) -> v1.Session:
        """A session of a worker's own server, which sees all ps and itself, or all tasks (the client of an in-graph
        cluster)."""
        cluster = Cluster(self._ps, self._workers, 'worker', worker)
        config = threads(unfiltered_config(cluster) if everybody else session_config(cluster), 4)
        return v1.Session(self._servers['worker', worker].target, graph=graph, config=config)


@functools.cache
def servers() -> Servers:
    """The cluster that all experiments of this process share; those with fewer tasks leave the others idle."""
    return Servers(MOST_PS, MOST_WORKERS)


class Pace:
    """What the clients of a job have done while it was measured. counts: steps of each; seconds: how long."""

    def __init__(self, counts: Sequence[int], seconds: float):
        self.counts, self.seconds = list(counts), seconds

    @property
    def rates(self) -> list[float]:
        """Steps per second of each client."""
        return [count / self.seconds for count in self.counts]

    @property
    def rate(self) -> float:
        """Steps per second of all."""
        return sum(self.rates)


def run_clients(steps: Sequence[Callable[[], None]], seconds: float, warm_up: int = 1) -> Pace:
    """Each client, a thread, makes its step over and over; counts what they do in `seconds`, after each has
    made `warm_up` steps. A step in progress at the end counts by the share of it that was done. Raises what a
    client raised."""
    counts, errors = [0.0] * len(steps), []
    ready, begun, over = threading.Barrier(len(steps) + 1), threading.Event(), threading.Event()
    until = 0.0

    def client(number: int) -> None:
        try:
            for _ in range(warm_up):
                steps[number]()
            ready.wait()
            begun.wait()
            while not over.is_set():
                start = time.monotonic()
                steps[number]()
                end = time.monotonic()
                counts[number] += 1 if end <= until else max(0.0, until - start) / (end - start)
        except Exception as error:
            errors.append(error)
            ready.abort()

    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(len(steps))]
    for thread in clients:
        thread.start()
    try:
        ready.wait()
        until = time.monotonic() + seconds
        begun.set()
        time.sleep(seconds)
    except threading.BrokenBarrierError:
        begun.set()
    over.set()
    for thread in clients:
        thread.join()
    if errors:
        raise errors[0]
    return Pace(counts, seconds)

