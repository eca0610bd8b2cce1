"""Claim 4: who waits for the slowest device. In-graph, synchronous and asynchronous, with one worker slower."""

import time
from collections.abc import Callable

from dist.experiments import figures
from dist.experiments.jobs import Client, one_layer, run_synchronously, start_clients, task_of, worker_placement
from dist.experiments.result import Request, Result, Table
from dist.experiments.servers import run_clients, servers
from dist.experiments.waiting import Pause
from inception_mg.data.progress import progress
from inception_mg.placement import CPU, Tower, in_graph

SECONDS, SLOW = 0.15, 5  # Emulated compute of a step; the slow worker takes so many times as long.
CLAIM = ('In-graph and synchronous training run at the pace of the slowest worker, and in-graph also at that of its '
         'one client; between-graph asynchronous training does not.')


def run(request: Request) -> Result:
    """1 to 16 workers, the last of which is SLOW times slower; a step has the same real work in all."""
    counts = (1, 2, 4, 8, 16)
    seconds, most_synchronous = (12.0, 16) if request.full else (3.0, 8)  # Sixteen such graphs take long to build.
    rows, starts = [], []
    servers()  # So that the first client's time is its own.
    for workers in progress(counts, len(counts), 'stragglers', 'cluster sizes'):
        pause_of = slow_last(workers)
        fast_rate, ready = in_graph_rate(workers, lambda tower: steady, seconds / 2)
        starts.append((workers, ready, 1 / fast_rate - SECONDS))
        rows.append((workers, fast_rate * workers, in_graph_rate(workers, pause_of, seconds)[0] * workers,
                     synchronous_rate(workers, pause_of, updates=5) * workers if workers <= most_synchronous else None,
                     asynchronous_rate(workers, pause_of, seconds), ideal(workers)))
    return summarise(rows, starts)


def steady() -> None:
    """The compute of a worker that is not slow."""
    time.sleep(SECONDS)


def slow_last(workers: int) -> Callable[[Tower], Pause]:
    """The last of several workers is slow; a single one is not."""
    def slow() -> None:
        time.sleep(SLOW * SECONDS)

    return lambda tower: slow if workers > 1 and task_of(tower) == workers - 1 else steady


def ideal(workers: int) -> float:
    """Steps per second of workers that wait for nobody."""
    slow = workers > 1
    return (workers - slow) / SECONDS + slow / (SLOW * SECONDS)


def in_graph_rate(workers: int, pause_of: Callable[[Tower], Pause], seconds: float) -> tuple[float, float]:
    """Updates per second of one client with a tower on each worker, and the seconds until its first one."""
    begun = time.monotonic()
    client = Client(in_graph(1, [[CPU]] * workers), 0, one_layer(pause_of), batch_size=8 * workers, everybody=True)
    start_clients([client])
    client()
    ready = time.monotonic() - begun
    pace = run_clients([client], seconds)
    client.close()
    return pace.rate, ready


def synchronous_rate(workers: int, pause_of: Callable[[Tower], Pause], updates: int) -> float:
    """Updates per second of as many clients that average one gradient of each."""
    pace = run_synchronously(start_clients([
        Client(worker_placement(k), k, one_layer(pause_of), sync=(workers, workers), last_step=updates + 2)
        for k in range(workers)]))
    return 1 / pace.seconds


def asynchronous_rate(workers: int, pause_of: Callable[[Tower], Pause], seconds: float) -> float:
    """Updates per second of as many clients that wait for nobody."""
    clients = start_clients([Client(worker_placement(k), k, one_layer(pause_of)) for k in range(workers)])
    pace = run_clients(clients, seconds)
    for client in clients:
        client.close()
    return pace.rate


def summarise(rows: list[tuple], starts: list[tuple]) -> Result:
    """rows: workers and batches per second of each way. starts: workers, the client's seconds to its first step, and
    what its step takes beyond the compute."""
    emulated = (f'computing is a wait of {SECONDS * 1e3:.0f} ms, on the last worker of {SLOW * SECONDS * 1e3:.0f} ms; '
                'servers, graphs, traffic and updates are real, in one process')
    last = rows[-1]
    figure, (left, right) = figures.panels(
        [f'One worker is {SLOW}x slower', 'What one client costs'],
        [('workers', 'batches per second, all workers'), ('workers', 'seconds')], f'Emulated: {emulated}')
    workers = [row[0] for row in rows]
    for column, colour, label in ((4, figures.BLUE, 'between-graph, asynchronous'),
                                  (3, figures.GREEN, 'between-graph, synchronous'),
                                  (2, figures.RED, 'in-graph')):
        known = [row for row in rows if row[column] is not None]
        figures.curve(left, [row[0] for row in known], [row[column] for row in known], colour, label)
    figures.curve(left, workers, [row[1] for row in rows], figures.ORANGE, 'in-graph, nobody slow')
    figures.curve(left, workers, [row[5] for row in rows], figures.GREY, 'nobody waits (arithmetic)', measured=False)
    figures.curve(right, workers, [row[1] for row in starts], figures.RED, 'in-graph: from nothing to the first step')
    figures.curve(right, workers, [row[2] for row in starts], figures.ORANGE, 'in-graph: a step, without its compute')
    for axis in (left, right):
        figures.doubling(axis, workers)
        axis.set_ylim(bottom=0)
        figures.legend(axis)
    return Result(CLAIM, [
        Table(('workers', 'in-graph, nobody slow', 'in-graph', 'synchronous', 'asynchronous', 'nobody waits'), rows,
              f'Batches per second of all workers; one of them is {SLOW}x slower'),
        Table(('workers', 'to its first step, s', 'a step beyond its compute, s'), starts, 'The client of in-graph')], [
        f'With {last[0]} workers, one of them slow, asynchronous training makes {last[4]:.1f} batches/s, '
        f'{last[4] / last[5]:.0%} of what it would if nobody waited for anything. In-graph makes {last[2]:.1f}, which '
        f'is {last[0]} for each step of the slow worker; with nobody slow {last[1]:.1f}.',
        f'The in-graph client needs {starts[-1][1]:.1f} s to build the graph of {last[0]} towers, to send it and to '
        f'make the first step, against {starts[0][1]:.1f} s for one tower.'], figure, emulated)
