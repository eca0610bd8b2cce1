"""Claim 3: bytes per ps fall as 1/P, and one ps saturates: where, with emulated links and with real ones here."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from dist.experiments import figures
from dist.experiments.jobs import Client, start_clients, worker_placement
from dist.experiments.measure import weights_per_ps
from dist.experiments.result import Request, Result, Table
from dist.experiments.servers import run_clients
from dist.experiments.waiting import Busy
from dist.planner import model
from inception_mg.data.progress import progress

v1 = tf.compat.v1
LINK, COMPUTE = 1.25e9, 0.25  # Emulated: bytes/s each way of every ps (10 Gbit/s), seconds of computing in a step.
PS_COUNTS, WORKERS = (1, 2, 4), (1, 2, 4, 8, 16)
REAL_WORKERS, REAL_SIDE, REAL_VARIABLES = (1, 2, 4, 8), 1024, 4  # 4 MiB each.
CLAIM = ('The bytes that a ps moves per step fall as 1/P. Workers are added without loss until the link of the fullest '
         'ps is full; P ps carry almost P times as many steps.')


class EmulatedPs:
    """The links of a ps: what leaves it and what arrives, `rate` bytes/s each way, one transfer after the other."""

    def __init__(self, size: int, rate: float):
        self.seconds, self.pulls, self.pushes = size / rate, Busy(), Busy()


def run(request: Request) -> Result:
    """Bytes by the project's ps strategy; workers that wait for links and compute; real workers that only move."""
    seconds, real_seconds = (10.0, 6.0) if request.full else (2.5, 1.5)
    shares = weights_per_ps((1, 2, 3, 4, 6, 8))
    todo = [(ps, workers) for ps in PS_COUNTS for workers in WORKERS]
    emulated = {pair: emulate(shares[pair[0]], pair[1], COMPUTE, LINK, seconds)
                for pair in progress(todo, len(todo), 'ps_bytes, emulated', 'clusters')}
    todo = [(ps, workers) for ps in (1, 2) for workers in REAL_WORKERS]
    real = {pair: moved_here(*pair, real_seconds) for pair in progress(todo, len(todo), 'ps_bytes, real', 'clusters')}
    return summarise(shares, emulated, real)


def emulate(shares: Sequence[int], workers: int, compute: float, rate: float, seconds: float) -> float:
    """Steps per second of workers that pull from all ps at once, compute, and push to all at once, each link serving
    one worker at a time."""
    tasks = [EmulatedPs(size, rate) for size in shares]

    def step() -> None:
        together([lambda ps=ps: ps.pulls.hold(ps.seconds) for ps in tasks])
        time.sleep(compute)
        together([lambda ps=ps: ps.pushes.hold(ps.seconds) for ps in tasks])

    return run_clients([step] * workers, seconds, warm_up=2).rate


def together(calls: Sequence) -> None:
    """Makes all calls at the same time."""
    threads = [threading.Thread(target=call) for call in calls[1:]]
    for thread in threads:
        thread.start()
    calls[0]()
    for thread in threads:
        thread.join()


def knee(shares: Sequence[int], compute: float, rate: float) -> float:
    """Workers from which the link of the fullest ps is never idle, by the planner."""
    return model.workers_that_fill(compute, max(shares) / rate)


def expected(shares: Sequence[int], workers: int, compute: float, rate: float) -> float:
    """Steps per second of all workers, by the planner: they share nothing but the links, which serve one at a time."""
    wire = max(shares) / rate
    return model.take_turns(workers, compute, wire)


def moved_here(num_ps: int, workers: int, seconds: float) -> float:
    """Bytes per second, pulled and pushed, of real workers that compute next to nothing, over loopback."""
    def loss_for(batch, tower) -> tf.Tensor:
        weights = [v1.get_variable(f'moved/{k}', [REAL_SIDE, REAL_SIDE], tf.float32, v1.ones_initializer())
                   for k in range(REAL_VARIABLES)]
        return tf.add_n([tf.nn.l2_loss(value) for value in weights])

    clients = start_clients([Client(worker_placement(k, num_ps), k, loss_for) for k in range(workers)])
    rate = run_clients(clients, seconds).rate
    for client in clients:
        client.close()
    return rate * 2 * REAL_VARIABLES * REAL_SIDE ** 2 * np.dtype(np.float32).itemsize


def summarise(shares: dict[int, list[int]], emulated: dict[tuple[int, int], float],
              real: dict[tuple[int, int], float]) -> Result:
    """Three tables and three panels: bytes, emulated links, this machine."""
    total = sum(shares[1])
    words = (f'in the middle computing is a wait of {COMPUTE * 1e3:.0f} ms and a link one of bytes / {LINK / 1e9:g} '
             'GB/s; bytes and the right panel are real')
    tables = [
        Table(('ps', 'weights on the fullest, MB', 'mean, MB', 'fullest / mean', 'workers that fill its link'),
              [(count, max(sizes) / 1e6, total / count / 1e6, max(sizes) * count / total, knee(sizes, COMPUTE, LINK))
               for count, sizes in shares.items()],
              'Inception v3: bytes that a worker pulls from a ps per step, and pushes'),
        Table(('workers', *(f'{ps} ps: {what}' for ps in PS_COUNTS for what in ('seen', 'planner'))),
              [(workers, *(value for ps in PS_COUNTS for value in (
                  emulated[ps, workers], expected(shares[ps], workers, COMPUTE, LINK)))) for workers in WORKERS],
              'Steps per second of all workers over emulated links'),
        Table(('workers', '1 ps, GB/s', '2 ps, GB/s'),
              [(workers, real[1, workers] / 1e9, real[2, workers] / 1e9) for workers in REAL_WORKERS],
              'Real traffic here: bytes pulled and pushed by workers that only move weights')]
    most = max(real[1, workers] for workers in REAL_WORKERS)
    return Result(CLAIM, tables, [
        f'Inception v3 has {total / 1e6:.1f} MB of trained weights; the fullest of 4 ps holds '
        f'{max(shares[4]) / 1e6:.1f} MB, of 8 {max(shares[8]) / 1e6:.1f} MB.',
        f'With {COMPUTE * 1e3:.0f} ms of computing and 10 Gbit/s one ps is full at '
        f'{knee(shares[1], COMPUTE, LINK):.1f} workers, two at {knee(shares[2], COMPUTE, LINK):.1f}, four at '
        f'{knee(shares[4], COMPUTE, LINK):.1f}.',
        f'This machine moves at most {most / 1e9:.2f} GB/s through one ps, update included: {most / 2 / total:.1f} '
        'steps of Inception v3 per second. A second ps on the same machine is another address, not another link or '
        'core.'],
        draw(shares, emulated, real, words), words)


def draw(shares, emulated, real, words: str):
    """Bytes against 1/P; steps per second against workers; real bytes per second against workers."""
    figure, (left, middle, right) = figures.panels(
        ['Bytes per ps and step', 'Where links are full (emulated)', 'Real traffic on this machine'],
        [('ps', 'MB each way per worker'), ('workers', 'steps per second, all workers'),
         ('workers', 'GB/s, both ways')],
        f'Emulated: {words}')
    counts = list(shares)
    figures.curve(left, counts, [max(shares[count]) / 1e6 for count in counts], figures.BLUE, 'fullest ps')
    figures.curve(left, counts, [sum(shares[1]) / count / 1e6 for count in counts], figures.GREY, '1/P', measured=False)
    for ps, colour in zip(PS_COUNTS, figures.COLOURS, strict=False):
        figures.curve(middle, WORKERS, [emulated[ps, workers] for workers in WORKERS], colour, f'{ps} ps')
        fine = range(WORKERS[0], WORKERS[-1] + 1)
        figures.curve(middle, fine, [expected(shares[ps], workers, COMPUTE, LINK) for workers in fine], colour,
                      f'{ps} ps, planner', measured=False)
    for ps, colour in zip((1, 2), figures.COLOURS, strict=False):
        figures.curve(right, REAL_WORKERS, [real[ps, workers] / 1e9 for workers in REAL_WORKERS], colour, f'{ps} ps')
    figures.doubling(middle, WORKERS)
    figures.doubling(right, REAL_WORKERS)
    for axis in (left, middle, right):
        axis.set_ylim(bottom=0)
        figures.legend(axis)
    return figure
