"""What a synchronous update costs beyond its computing, by the number of workers; a program of its own:

    python -m dist.experiments.sync_rounds 8 16 32 64

One ps and the workers are servers of one process, a new one for each number; computing is a wait of SECONDS, the
model one layer, and all gradients are averaged. Beside it the same steps without the protocol: asynchronous workers,
each of which applies its own gradient. docs/experiments.md has its figures.
"""

import os
import statistics
import subprocess
import sys
import time

from dist.experiments.result import Table
from inception_mg import tf_environment

SECONDS, UPDATES = 0.2, 20
HEADER = ('workers', 'update, ms', 'beyond its computing, ms', 'without the protocol, ms', 'processor, ms/worker',
          'graphs built, s', 'to the first update, s', 'operations, chief', 'operations, worker', 'MB per worker')


def measure(workers: int) -> tuple:
    """A row of the table; for once per process, whose servers cannot be stopped."""
    from dist.experiments import servers
    from dist.experiments.jobs import Client, Clock, one_layer, run_monitored, start_clients, worker_placement

    class StepClock(Clock):
        """Notes when a step of its client is over, and what this process has worked until then; asks the ps nothing."""

        def __init__(self, client: Client):
            super().__init__(client)
            self.busy: list[float] = []

        def after_run(self, run_context, run_values):
            self.seen.append(time.monotonic())
            self.busy.append(time.process_time())

        def end(self, session):
            self.over.set()

    cluster = servers.Servers(1, workers)

    def clients(sync: tuple[int, int] | None) -> list[Client]:
        return [Client(worker_placement(k), k, one_layer(lambda tower: lambda: time.sleep(SECONDS)), sync=sync,
                       last_step=UPDATES + 2, cluster=cluster) for k in range(workers)]

    memory, begun = resident_bytes(), time.monotonic()
    synchronous = clients((workers, workers))
    built = time.monotonic() - begun
    start_clients(synchronous)
    begun = time.monotonic()
    clocks = [StepClock(client) for client in synchronous]
    run_monitored(synchronous, clocks)
    for clock in clocks:
        clock.over.wait()
    memory = resident_bytes() - memory
    seen, busy = clocks[0].seen, clocks[0].busy
    update = statistics.median(b - a for a, b in zip(seen[1:], seen[2:], strict=False))
    work = (busy[-1] - busy[1]) / (len(busy) - 2) / workers
    alone = servers.run_clients(start_clients(clients(None)), UPDATES * SECONDS)
    return (workers, 1e3 * update, 1e3 * (update - SECONDS), 1e3 * workers / alone.rate, 1e3 * work, built,
            seen[0] - begun, *(len(client.graph.get_operations()) for client in (synchronous[0], synchronous[-1])),
            memory / workers / 1e6)


def resident_bytes() -> int:
    """Memory of this process."""
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def main(words: list[str]) -> int:
    """Prints the table of these numbers of workers, or the row of one."""
    if words[:1] == ['--row']:
        print(*measure(int(words[1])), flush=True)
        os._exit(0)  # A server cannot be stopped.
    environ = {**tf_environment.DEFAULTS, 'CUDA_VISIBLE_DEVICES': '-1', **os.environ}
    rows = []
    for workers in words or ['8', '16', '32', '64']:
        done = subprocess.run([sys.executable, '-m', 'dist.experiments.sync_rounds', '--row', workers], env=environ,
                              stdout=subprocess.PIPE, text=True, check=True)
        rows.append(tuple(float(word) if '.' in word else int(word) for word in done.stdout.split()))
    print('\n'.join(Table(HEADER, rows).lines()))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
