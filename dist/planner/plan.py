"""Rows of a plan: for so many workers, ps and such a network, how fast, what binds, and what would help."""

import dataclasses
from collections.abc import Sequence

from dist.planner import model, placing
from dist.planner.machine import Machine
from dist.planner.model import Job, Pace
from dist.planner.networks import Variable, trained
from inception_mg.dealing import BYTES, slices

ENOUGH = 0.98       # Of the best number of ps, what the fewest must reach.
MOST_PS = 64
CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # Numbers of ps that are tried.
MOST_WORKERS = 256
COPIES = 4          # Of a trained weight on its ps: itself, two slots of RMSProp, its moving average.
RATE_RANGE = 0.12   # Of a link's rate: what it was off in tables that were fitted at another point.
SPREAD_RANGE = (0.0, 0.04)
MORE_PS = 'number of ps'
HALF = 0.5          # Of its linear share: a worker that brings less is one too many.


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked of a machine.

    gpus: of one worker. batch_size: images per GPU and step, 0 for as many as were measured. speed: images/s of one
    GPU, 0 for what was measured. bytes_factor: 0.5 for bfloat16 on the wire. slow: how many workers take how many
    times as long. partition: largest bytes of a slice of a variable, 0 for whole ones.
    """

    sync: bool = True
    gpus: int = 1
    batch_size: int = 0
    speed: float = 0.0
    bytes_factor: float = 1.0
    slow: tuple[int, float] = (0, 1.0)
    partition: int = 0


@dataclasses.dataclass(frozen=True)
class Row:
    """One prediction. gbits: of the network, 0 for the machine's own. step: seconds. efficiency: images/s over those of
    as many machines alone. low, high: images/s with a rate 12 % off and a spread of 0 to 4 %. bound, gains: what binds,
    and by how much images/s grow when each resource is doubled. asynchronous: images/s of asynchronous over synchronous
    workers, minus 1. staleness: updates, of asynchronous ones. fullest, ps_memory: bytes."""

    workers: int
    ps: int
    backups: int
    gbits: float
    images_per_sec: float
    efficiency: float
    step: float
    low: float
    high: float
    bound: str
    gains: dict[str, float]
    asynchronous: float
    staleness: float
    fullest: int
    ps_memory: int


def pieces(variables: Sequence[Variable], partition: int) -> list[Variable]:
    """The trained variables, those above `partition` bytes cut into slices as training does; each crosses by itself."""
    found = []
    for variable in trained(variables):
        sizes = slices(variable.shape or (variable.bytes // BYTES,), partition)
        found += [Variable(f'{variable.name}/{part}', size, variable.macs * size // variable.bytes)
                  for part, size in enumerate(sizes)]
    return found


class Planner:
    """Predictions for one machine and one question; what is predicted once is kept."""

    def __init__(self, machine: Machine, question: Question):
        self.machine, self.question = machine, question
        self._pieces = pieces(machine.variables, question.partition)
        self._places: dict[int, list[int]] = {}
        self._paces: dict[tuple, Pace] = {}
        self.images = question.gpus * self.batch

    @property
    def batch(self) -> int:
        """Images per GPU and step."""
        return self.question.batch_size or self.machine.default_batch

    @property
    def as_measured(self) -> bool:
        """Whether the question is one that the machine's own table answers."""
        question, machine = self.question, self.machine
        return (question.sync and question.gpus == 1 and not question.speed and not question.slow[0]
                and question.bytes_factor == 1 and self.batch == machine.default_batch)

    def seconds(self) -> float:
        """A step of one worker without network: its GPUs and its input."""
        machine, question = self.machine, self.question
        one = self.batch / question.speed if question.speed else machine.seconds(self.batch)
        seconds = model.machine_seconds(self._pieces, one, question.gpus, machine.host_rate, machine.bus_rate,
                                        machine.shared_power, machine.spread)
        return max(seconds, self.images / machine.input_rate) if machine.input_rate else seconds

    def job(self, workers: int, ps: int, gbits: float, backups: int = 0) -> Job:
        """The model's view of it."""
        machine, question = self.machine, self.question
        if ps not in self._places:
            self._places[ps] = placing.largest_first(self._pieces, ps)
        ps_rate, worker_rate = machine.rates(gbits)
        return Job(self._pieces, self._places[ps], workers, self.seconds(), self.images, ps_rate, worker_rate,
                   machine.spread, machine.message, machine.update, machine.average, machine.round,
                   question.bytes_factor, backups, question.slow, shuffled=machine.shuffled)

    def pace(self, workers: int, ps: int, gbits: float, backups: int = 0, sync: bool | None = None) -> Pace:
        """Its pace."""
        sync = self.question.sync if sync is None else sync
        key = workers, ps, gbits, backups, sync
        if key not in self._paces:
            self._paces[key] = model.predict(self.job(workers, ps, gbits, backups), sync)
        return self._paces[key]

    def best_ps(self, workers: int, gbits: float, backups: int = 0) -> int:
        """The fewest ps within 2 % of the best of up to twice as many as workers (MOST_PS at most)."""
        counts = [ps for ps in CANDIDATES if ps <= min(2 * workers, MOST_PS)]
        speeds = {ps: self.pace(workers, ps, gbits, backups).images_per_sec for ps in counts}
        return min(ps for ps in counts if speeds[ps] >= ENOUGH * max(speeds.values()))

    def row(self, workers: int, ps: int, gbits: float, backups: int = 0) -> Row:
        """One prediction, with what binds and its range."""
        job, question = self.job(workers, ps, gbits, backups), self.question
        pace = self.pace(workers, ps, gbits, backups)
        gains = self.gains(job, pace)
        other = self.pace(workers, ps, gbits, 0, not question.sync)
        sync, free = (pace, other) if question.sync else (other, pace)
        alone = self.images / self.seconds()
        low, high = (model.predict(dataclasses.replace(
            job, ps_rate=job.ps_rate * (1 + sign * RATE_RANGE), worker_rate=job.worker_rate * (1 + sign * RATE_RANGE),
            spread=spread), question.sync).images_per_sec
            for sign, spread in ((-1, max(SPREAD_RANGE[1], job.spread)), (1, SPREAD_RANGE[0])))
        bound = max((name for name in gains if name != MORE_PS), key=gains.get)  # What binds is a thing, not a number.
        return Row(workers, ps, backups, gbits, pace.images_per_sec, pace.images_per_sec / (workers * alone), pace.step,
                   min(low, pace.images_per_sec), max(high, pace.images_per_sec), bound if gains[bound] > 0.01 else
                   'nothing alone', gains, free.images_per_sec / sync.images_per_sec - 1, free.staleness, job.fullest,
                   ps_memory(job, question.sync))

    def at(self, seconds: float, sync: bool) -> 'Planner':
        """The same planner for GPUs of which a step takes so long."""
        other = Planner(self.machine, dataclasses.replace(self.question, sync=sync, speed=self.batch / seconds))
        other._pieces, other._places = self._pieces, self._places
        return other

    def gains(self, job: Job, pace: Pace, all_of_them: bool = True) -> dict[str, float]:
        """By how much images/s grow when one resource is doubled: the computing, the wires of the ps and of the
        workers, the updating of a ps, and the number of ps; or only compute and all wires."""
        question, ps = self.question, max(job.place) + 1
        changed = {
            'compute': dataclasses.replace(job, seconds=job.seconds / 2),
            'wire of a ps': dataclasses.replace(job, ps_rate=2 * job.ps_rate),
            'wire of a worker': dataclasses.replace(job, worker_rate=2 * job.worker_rate),
            **({'update on a ps': dataclasses.replace(job, update=job.update / 2, average=job.average / 2)}
               if job.update or job.average else {})}
        if not all_of_them:
            changed = {'compute': changed['compute'], 'the wires': dataclasses.replace(
                changed['wire of a ps'], worker_rate=2 * job.worker_rate)}
        gains = {name: model.predict(other, question.sync).images_per_sec / pace.images_per_sec - 1
                 for name, other in changed.items()}
        if all_of_them and 2 * ps <= len(self._pieces):
            gains[MORE_PS] = self.pace_of_more(job, 2 * ps) / pace.images_per_sec - 1
        return {name: max(0.0, gain) for name, gain in gains.items()}

    def pace_of_more(self, job: Job, ps: int) -> float:
        """images/s of the same job with so many ps."""
        if ps not in self._places:
            self._places[ps] = placing.largest_first(self._pieces, ps)
        return model.predict(dataclasses.replace(job, place=self._places[ps]), self.question.sync).images_per_sec

    def rows(self, workers: Sequence[int], ps: Sequence[int], networks: Sequence[float], backups: Sequence[int]
             ) -> list[Row]:
        """All combinations; ps: () for the fewest that are enough."""
        return [self.row(count, number, gbits, spare)
                for gbits in networks for count in workers for spare in backups if spare < count
                for number in (ps or [self.best_ps(count, gbits, spare)])]

    def head(self) -> list[str]:
        """What is asked, in words, and what was measured and assumed."""
        question, machine = self.question, self.machine
        size = sum(variable.bytes for variable in self._pieces)
        given = f'{question.speed:g} images/s given' if question.speed else \
            f'{self.batch / machine.seconds(self.batch):.1f} images/s measured'
        return [
            f'{machine.name} ({machine.source})',
            f'{question.gpus} GPU{"s" * (question.gpus > 1)} per worker, batch {self.batch} each, {given} per GPU; '
            f'{machine.network}, {size / 1e6:.0f} MB in {len(self._pieces)} '
            f'{"slices" if question.partition else "variables"}'
            f'{", bfloat16 on the wire" if question.bytes_factor < 1 else ""}; '
            f'{"synchronous" if question.sync else "asynchronous"}'
            f'{f", {question.slow[0]} worker(s) {question.slow[1]:g}x slower" if question.slow[0] else ""}',
            f'assumed: a third of a step is forward, {machine.spread:.0%} spread; the range is of links '
            f'{RATE_RANGE:.0%} off and a spread of 0 to {SPREAD_RANGE[1]:.0%}; a ps moves at most '
            f'{machine.ps_rate / 1e9:.2f} GB/s each way',
            *machine.facts]

    def advice(self, rows: Sequence[Row], ps: Sequence[int]) -> list[str]:
        """What follows from the rows: where more workers stop helping, and whether to go asynchronous."""
        lines = []
        for gbits in dict.fromkeys(row.gbits for row in rows):
            own = [row for row in rows if row.gbits == gbits]
            last, most = own[-1], max(row.workers for row in own)
            usual = not any(row.backups for row in own) and not self.question.slow[0]
            end = self.last_worthwhile(gbits, ps, most) if usual else most
            where = f'{gbits:g} Gbit/s: ' if gbits else ''
            more = f'up to {most} every worker brings at least half of its share' if end >= most else \
                f'from worker {end + 1} on one more brings less than half of its share'
            lines.append(f'{where}{more}; with {last.workers} workers and {last.ps} ps {last.bound} binds'
                         + (f' (doubled: {last.gains[last.bound]:+.0%})' if last.bound in last.gains else ''))
            if self.question.sync and last.asynchronous > 0.1:
                lines.append(f'{where}asynchronous would make {last.asynchronous:+.0%} there, with gradients that are '
                             f'{last.staleness:.0f} updates old: try more ps or a larger batch first')
        return lines

    def last_worthwhile(self, gbits: float, ps: Sequence[int], most: int) -> int:
        """The last worker, up to `most`, that brings at least half of what one alone does."""
        alone, before = self.images / self.seconds(), 0.0
        for workers in range(1, most + 1):
            counts = ps or [self.best_ps(workers, gbits)]
            speed = max(self.pace(workers, number, gbits).images_per_sec for number in counts)
            if speed - before < HALF * alone:
                return workers - 1
            before = speed
        return most

    def target(self, images_per_sec: float, gbits: float) -> tuple[Row, bool]:
        """The fewest workers, and then the fewest ps, that reach it, and True; or the best there is, and False."""
        def reached(row_workers: int, ps: int) -> bool:
            return self.pace(row_workers, ps, gbits).images_per_sec >= images_per_sec

        workers, best = 1, (0.0, 1, 1)
        while workers <= MOST_WORKERS:
            ps = self.best_ps(workers, gbits)
            best = max(best, (self.pace(workers, ps, gbits).images_per_sec, workers, ps), key=lambda one: one[0])
            if any(reached(workers, count) for count in self._counts(workers)):
                break
            if workers == MOST_WORKERS or best[0] > self.pace(workers, ps, gbits).images_per_sec * 1.02:
                return self.row(best[1], best[2], gbits), False
            workers *= 2
        low = workers // 2 + 1  # The half of it did not reach; speed grows up to here.
        while low < workers:
            middle = (low + workers) // 2
            if any(reached(middle, count) for count in self._counts(middle)):
                workers = middle
            else:
                low = middle + 1
        ps = next(count for count in self._counts(workers) if reached(workers, count))
        return self.row(workers, ps, gbits), True

    def _counts(self, workers: int) -> list[int]:
        return [ps for ps in CANDIDATES if ps <= min(2 * workers, MOST_PS)]


def ps_memory(job: Job, sync: bool) -> int:
    """Bytes on the fullest ps: weights, slots and averages, and one gradient of every worker. (Synchronous workers each
    have a slot there; asynchronous ones may all push at once.)"""
    return job.fullest * (COPIES + job.workers)


def _short(speed: float) -> str:
    return f'{speed:.0f}' if speed >= 100 else f'{speed:.3g}'


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as text."""
    several = len({row.gbits for row in rows}) > 1 or rows and rows[0].gbits > 0
    backups = any(row.backups for row in rows)
    head = (f'{"Gbit/s ":>7}' * bool(several) + f'{"workers":>7}{"ps":>4}' + f'{"backups":>8}' * backups
            + f'{"images/s":>9}{"range":>14}{"efficiency":>11}{"step, s":>8}  {"bound by":<17}{"doubled":>7}  '
            f'{"others doubled":<36}{"async":>7}{"stale":>6}{"fullest ps":>11}{"its memory":>11}')
    lines = [head]
    for row in rows:
        others = ', '.join(f'{name} {gain:+.0%}' for name, gain in sorted(row.gains.items(), key=lambda one: -one[1])
                           if name != row.bound and gain >= 0.005)
        lines.append(
            f'{row.gbits:>6g} ' * bool(several) + f'{row.workers:>7}{row.ps:>4}' + f'{row.backups:>8}' * backups
            + f'{_short(row.images_per_sec):>9}{f"{_short(row.low)}-{_short(row.high)}":>14}'
            f'{row.efficiency:>11.2f}{row.step:>8.3f}'
            f'  {row.bound:<17}{row.gains.get(row.bound, 0):>+7.0%}  {others[:35]:<36}{row.asynchronous:>+7.0%}'
            f'{row.staleness:>6.1f}{row.fullest / 1e6:>8.1f} MB{row.ps_memory / 1e6:>8.0f} MB')
    return lines
