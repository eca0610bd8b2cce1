"""A training step over ps, predicted. Plain Python: this file is the whole model, and its mechanisms have names.

**Follow one worker.** Workers do the same at the same time, so each gets its share of every ps's link, and one of them
tells the step. Four things decide it:

- *Whole variables.* A variable lies on one ps. The fullest ps, not the mean one, has the busiest wire.
- *In order.* A ps sends a worker its variables one after the other, in the order of the network (or, `shuffled`, in one
  that nobody chose), and takes gradients in the order in which they are made, the last layer first.
- *Overlap.* A layer computes as soon as its weights have come and the layer before is done; its gradient leaves while
  the layers before it are still being differentiated.
- *The slowest.* A synchronous step lasts as long as its slowest needed worker: the expected maximum of a spread.

Asynchronous workers do not move together. They share the link of the fullest ps at times that chance has set: some pull
while others push, so that both directions are in use, and some pull at the same time, so that neither is always.
Seconds, bytes and bytes per second throughout.
"""

import dataclasses
import functools
import itertools
import random
import statistics
from collections.abc import Iterable, Sequence

from dist.planner.networks import Variable

ORDERS = 3
FORWARD = 1 / 3  # Of a step's computing: a layer's gradients take two products of the size of its one.
REPLICATED = 'replicated'  # Weights are kept on the workers: a variable comes back as soon as it is updated.


@dataclasses.dataclass(frozen=True)
class Job:
    """What is predicted.

    variables: those that are trained, in the order of the network. place: the ps of each. seconds: a worker's step
    without any wire; images: of one worker's step. ps_rate: bytes/s each way that a ps gives to all workers together;
    worker_rate: the same of a worker. spread: of the seconds, as a share of them. message: seconds of a ps for each
    variable that crosses. update: seconds of a ps per byte of what it updates; average: per byte of each gradient that
    a synchronous update averages. round: seconds of a synchronous update beside all that. bytes_factor: 0.5 where
    bfloat16 crosses. backups: of the workers. slow: how many of the workers take how many times as long. style: '' or
    REPLICATED. shuffled: weights come in no order, as TensorFlow asks for all of them at once (Hashemi et al.,
    "TicTac", arXiv:1803.03288).
    """

    variables: Sequence[Variable]
    place: Sequence[int]
    workers: int
    seconds: float
    images: int
    ps_rate: float
    worker_rate: float
    spread: float = 0.03
    message: float = 0.0
    update: float = 0.0
    average: float = 0.0
    round: float = 0.0
    bytes_factor: float = 1.0
    backups: int = 0
    slow: tuple[int, float] = (0, 1.0)
    forward: float = FORWARD
    style: str = ''
    shuffled: bool = False

    @property
    def fullest(self) -> int:
        """Bytes of trained weights on the fullest ps."""
        loads: dict[int, int] = {}
        for variable, ps in zip(self.variables, self.place, strict=True):
            loads[ps] = loads.get(ps, 0) + variable.bytes
        return max(loads.values())


@dataclasses.dataclass(frozen=True)
class Pace:
    """images_per_sec: of all workers. step: seconds from one step of a worker to its next. staleness: updates that
    others make between a worker's reading and its own, on average."""

    images_per_sec: float
    step: float
    staleness: float = 0.0


# One worker.

@dataclasses.dataclass(frozen=True)
class Timeline:
    """When one worker's step has pulled, computed and pushed everything; begun at 0."""

    pulled: float
    computed: float
    pushed: float


def follow(job: Job, seconds: float, sharers: float, pushers: float = 0.0) -> Timeline:
    """One worker through its variables. seconds: of its computing. sharers: workers that pull at the same time;
    pushers: those that push (0: as many). Of a shuffled order, the mean over ORDERS of them."""
    if job.shuffled:
        lines = [_follow(job, seconds, sharers, pushers, _order(len(job.variables), seed)) for seed in range(ORDERS)]
        return Timeline(*(statistics.fmean(times) for times in zip(*map(dataclasses.astuple, lines), strict=True)))
    return _follow(job, seconds, sharers, pushers, range(len(job.variables)))


@functools.cache
def _order(count: int, seed: int) -> tuple[int, ...]:
    """Each variable's turn."""
    turns = list(range(count))
    random.Random(seed).shuffle(turns)
    return tuple(turns)


def _follow(job: Job, seconds: float, sharers: float, pushers: float, turns: Sequence[int]) -> Timeline:
    sizes = [variable.bytes * job.bytes_factor for variable in job.variables]
    work = sum(variable.macs for variable in job.variables) or 1
    shares = [seconds * variable.macs / work for variable in job.variables]
    extra = job.message * job.ps_rate  # What a message costs a ps, in bytes that it could have sent.
    crossing = [size + extra for size in sizes]
    replicated = job.style == REPLICATED
    arrived = [0.0] * len(sizes) if replicated else links(
        [turn * 1e-12 for turn in turns], crossing, job.place, job.ps_rate / sharers, job.worker_rate)
    now = 0.0
    for there, share in zip(arrived, shares, strict=True):
        now = max(now, there) + job.forward * share
    ready = [0.0] * len(sizes)
    for number in range(len(sizes) - 1, -1, -1):
        now += (1 - job.forward) * shares[number]
        ready[number] = now
    rate = job.ps_rate / (pushers or sharers)
    pushed = links(ready, crossing, job.place, rate, job.worker_rate)
    if replicated:
        pushed = links(pushed, crossing, job.place, rate, job.worker_rate)
    return Timeline(max(arrived), now, max(now, *pushed))


def links(ready: Sequence[float], sizes: Sequence[float], place: Sequence[int], ps_rate: float, worker_rate: float
          ) -> list[float]:
    """When each variable is through: each ps takes those of one worker in the order in which they are ready, at its
    rate, and all together at no more than the worker's."""
    queues: dict[int, list[int]] = {}
    for number in sorted(range(len(ready)), key=lambda k: (ready[k], k)):
        queues.setdefault(place[number], []).append(number)
    done = [0.0] * len(ready)
    if ps_rate * len(queues) <= worker_rate:  # The worker's own link is never the narrower one.
        for queue in queues.values():
            now = 0.0
            for number in queue:
                now = done[number] = max(now, ready[number]) + sizes[number] / ps_rate
        return done
    heads = {ps: 0 for ps in queues}
    left = {ps: sizes[queue[0]] for ps, queue in queues.items()}
    now = 0.0
    while heads:
        starts = {ps: ready[queues[ps][place_in]] for ps, place_in in heads.items()}
        active = [ps for ps, start in starts.items() if start <= now]
        if not active:
            now = min(starts.values())
            continue
        rate = min(ps_rate, worker_rate / len(active))
        step = min(left[ps] for ps in active) / rate
        later = min((start for start in starts.values() if start > now), default=float('inf'))
        step = min(step, later - now)
        now += step
        for ps in active:
            left[ps] -= rate * step
            if left[ps] <= 1e-9 * sizes[queues[ps][heads[ps]]]:
                done[queues[ps][heads[ps]]] = now
                heads[ps] += 1
                if heads[ps] == len(queues[ps]):
                    del heads[ps]
                else:
                    left[ps] = sizes[queues[ps][heads[ps]]]
    return done


# All of them, synchronous.

def synchronous(job: Job) -> Pace:
    """Each update averages a gradient of every worker but the backups."""
    seconds, sharers, pushers = slowest(job)
    step = follow(job, seconds, sharers, pushers).pushed + settle(job)
    return Pace((job.workers - job.backups) * job.images / step, step)


def settle(job: Job) -> float:
    """Seconds from the last gradient to the new weights: the fullest ps averages and updates."""
    return job.fullest * (job.update + job.average * (job.workers - job.backups)) + job.round


def slowest(job: Job) -> tuple[float, float, float]:
    """Seconds of computing of the last worker that an update needs; how many pull and push beside it.

    Slow workers are needed when there are not enough backups. The last to come then has the links to itself.
    """
    needed, (count, factor) = job.workers - job.backups, job.slow
    equal = job.workers - count
    if needed > equal and factor > 1:
        alone = needed - equal
        seconds = factor * job.seconds * (1 + job.spread * expected_order(alone, count))
        others = follow(job, job.seconds, job.workers)
        first = follow(job, seconds, job.workers)
        # Their gradients are through before its first one is ready, or all share to the end.
        apart = others.pushed < first.computed - (1 - job.forward) * seconds
        return seconds, job.workers, count if apart else job.workers
    seconds = job.seconds * (1 + job.spread * expected_order(needed, equal))
    sharers = equal + count / factor
    return seconds, sharers, sharers


@functools.cache
def expected_order(rank: int, count: int) -> float:
    """The mean of the rank-th smallest of `count` numbers of a standard normal distribution; of the largest of 2,
    0.56, of 32, 2.07."""
    normal, width = statistics.NormalDist(), 0.02
    total = weight = 0.0
    for number in range(-300, 301):
        x = number * width
        below = normal.cdf(x)
        density = normal.pdf(x) * below ** (rank - 1) * (1 - below) ** (count - rank)
        total, weight = total + x * density, weight + density
    return total / weight


def mean_wait(draws: Iterable[Sequence[float]], needed: int) -> float:
    """Mean seconds until `needed` of the workers, which all begin together, are done. draws: seconds of each worker, of
    each update."""
    return statistics.fmean(sorted(seconds)[needed - 1] for seconds in draws)


def workers_that_fill(seconds: float, wire: float) -> float:
    """From how many workers on a link is never idle, when they overlap nothing: a step's time over that link's part of
    it. wire: seconds that each takes of it, one way."""
    return (seconds + 2 * wire) / wire


def mean_order(draws: Iterable[Sequence[float]], needed: int) -> float:
    """Mean seconds of updates that each begin when the one before has `needed` gradients. draws: the seconds that each
    worker would take for its next step, of each update. Who is late finishes before it begins for a later update."""
    free: list[float] = []
    now, updates = 0.0, 0
    for seconds in draws:
        free = free or [0.0] * len(seconds)
        done = [max(start, now) + own for start, own in zip(free, seconds, strict=True)]
        end = sorted(done)[needed - 1]
        # Who is free before the end began for this update and may be in it; the others are not there at all.
        free = [own if max(start, now) < end else start for own, start in zip(done, free, strict=True)]
        now, updates = end, updates + 1
    return now / updates


# All of them, asynchronous.

def asynchronous(job: Job) -> Pace:
    """Nobody waits for anybody, but all share the two directions of the fullest ps's link."""
    loads: dict[int, int] = {}
    for variable, ps in zip(job.variables, job.place, strict=True):
        loads[ps] = loads.get(ps, 0) + variable.bytes
    messages = job.message * job.place.count(max(loads, key=loads.get))
    wire = job.fullest * job.bytes_factor / job.ps_rate + messages
    (slow, factor), groups = job.slow, []
    for count, scale in ((job.workers - slow, 1.0), (slow, factor)):
        # What a lone worker takes beside its two transfers: computing, and its own link where that is the narrower.
        groups.append((count, max(0.0, follow(job, scale * job.seconds, 1).pushed - 2 * wire)))
    rate, staleness = share_links(groups, wire, wire + job.fullest * job.update)
    return Pace(rate * job.images, job.workers / rate, staleness)


def share_links(groups: Sequence[tuple[int, float]], pull: float, push: float) -> tuple[float, float]:
    """Updates per second and mean staleness of workers that pull, compute and push, over and over, at times that chance
    has set.

    groups: (workers, seconds that each spends beside the links). pull, push: seconds that each takes of a direction of
    the link when it has it to itself; all transfers under way share it. What a worker finds there when it comes is what
    would be there without it: exact for such links (Reiser and Lavenberg, "Mean-value analysis of closed multichain
    queuing networks", JACM 1980). So 4 workers that only pull and push make 4/5 of what the two directions would carry:
    while all pull nobody pushes.
    """
    waiting = {(0,) * len(groups): (0.0, 0.0)}  # At each direction, by how many workers of each group there are.
    for workers in itertools.product(*(range(count + 1) for count, _ in groups)):
        rates, times = [0.0] * len(groups), [(0.0, 0.0)] * len(groups)
        for group, (count, (_, beside)) in enumerate(zip(workers, groups, strict=True)):
            if count:
                others = waiting[(*workers[:group], count - 1, *workers[group + 1:])]
                times[group] = pull * (1 + others[0]), push * (1 + others[1])
                rates[group] = count / max(1e-12, beside + sum(times[group]))
        waiting[workers] = tuple(sum(rate * own[way] for rate, own in zip(rates, times, strict=True))
                                 for way in range(2))
    total = sum(rates)
    stale = sum(rate * (total - rate / count) * (beside + own[1])
                for rate, own, (count, beside) in zip(rates, times, groups, strict=True) if count)
    return total, stale / total


def take_turns(workers: int, think: float, wire: float) -> float:
    """Updates per second of equal workers at links that serve one at a time, as some emulations do: nothing is lost to
    chance, until a link is full. wire: seconds each way."""
    return min(workers / (think + 2 * wire), 1 / wire)


def predict(job: Job, sync: bool) -> Pace:
    """The pace of a job, synchronous or not."""
    return synchronous(job) if sync else asynchronous(job)


# Inside a machine.

def machine_seconds(variables: Sequence[Variable], tower_seconds: float, towers: int, host_rate: float, bus_rate: float,
                    shared_power: float = 0.0, spread: float = 0.03) -> float:
    """A step of a machine with several GPUs, without network: the towers are the workers and its host the one ps.

    host_rate: bytes/s each way that the host's memory gives to all; bus_rate: of one GPU. shared_power: by how much a
    GPU is slower when its neighbour works too.
    """
    if towers == 1:
        return tower_seconds
    return synchronous(Job(variables, [0] * len(variables), towers, tower_seconds * (1 + shared_power), 1, host_rate,
                           bus_rate, spread)).step
