"""Claim 7: 16 devices on two machines against 8 in one: arithmetic, from the time of a step and the bytes it moves."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dist.experiments import figures
from dist.experiments.measure import step_seconds_here, weights_per_ps
from dist.experiments.result import Request, Result, Table

NETWORKS = {'1 Gbit/s': 0.125e9, '10 Gbit/s': 1.25e9, '25 Gbit/s': 3.125e9, '100 Gbit/s': 12.5e9}  # Bytes/s each way.
DEVICES, MACHINES, NUM_PS = 8, 2, 2
EXAMPLES = (0.1, 0.5, 2.0)  # Seconds of computing in the table.
CLAIM = ('16 devices on two machines beat 8 in one only where a step computes longer than its weights and gradients '
         'travel; they double it only where it computes much longer.')


class Wire(NamedTuple):
    """seconds of a synchronous step on the wire, weights down and gradients up, if nothing overlaps."""

    once: float     # Each machine pulls a weight once for all its devices, as build_towers does.
    repeated: float  # Each device pulls and pushes for itself, as 16 workers of one device would.


def run(request: Request) -> Result:
    """Measures a step of Inception v3 here, and asks what wires do to it."""
    batch, steps = (32, 5) if request.full else (8, 2)
    measured, shares = step_seconds_here(batch, steps), weights_per_ps((NUM_PS,))[NUM_PS]
    return summarise(measured, batch, shares)


def wire(shares: Sequence[int], rate: float) -> Wire:
    """shares: bytes of weights on each ps, which are on machines of their own. The fullest link decides: that of a
    machine, which pulls all, or of the fullest ps, which serves every machine."""
    def seconds(pulls_per_machine: int) -> float:
        return 2 * pulls_per_machine * max(sum(shares), MACHINES * max(shares)) / rate

    return Wire(seconds(1), seconds(DEVICES))


def speed_up(compute: float, wire_seconds: float) -> float:
    """Images per second of 16 devices on two machines, over those of 8 in one, which pays nothing for a wire."""
    return MACHINES * compute / (compute + wire_seconds)


def summarise(measured: float, batch: int, shares: Sequence[int]) -> Result:
    """measured: seconds of a step of `batch` images here."""
    wires = {name: wire(shares, rate) for name, rate in NETWORKS.items()}
    emulated = (f'arithmetic: synchronous, {MACHINES} machines of {DEVICES} devices and {NUM_PS} ps on machines of '
                'their own, nothing overlaps, averaging inside a machine costs nothing; measured are the bytes and '
                f'the processor time of a step of {batch} images here, {measured:.2f} s on every core')
    rows = [(name, both.once, *(speed_up(seconds, both.once) for seconds in (*EXAMPLES, measured)),
             speed_up(EXAMPLES[1], both.repeated)) for name, both in wires.items()]
    header = ('network', 'wire, s; even at this compute', *(f'compute {seconds:g} s' for seconds in EXAMPLES),
              f'{measured:.2f} s (here)', f'{EXAMPLES[1]:g} s, each device pulls for itself')
    figure, (axis,) = figures.panels(
        ['16 devices on two machines against 8 in one'],
        [('seconds of computing in a step', 'speed-up (images per second)')],
        f'Model: {emulated}', width=7.4, height=4.2)
    times = np.geomspace(0.01, 20, 100)
    for (name, both), colour in zip(wires.items(), figures.COLOURS, strict=False):
        axis.plot(times, speed_up(times, both.once), color=colour, label=name)
        axis.plot(times, speed_up(times, both.repeated), color=colour, linestyle=':', alpha=0.7)
    axis.plot([], [], color=figures.GREY, linestyle=':', label='each device pulls for itself')
    axis.axhline(1, color='black', linewidth=0.8)
    axis.axvline(measured, color=figures.GREY, linestyle='--', linewidth=1, label=f'this machine, {batch} images')
    axis.set_xscale('log')
    axis.set_ylim(0, 2.05)
    figures.legend(axis, loc='center left', bbox_to_anchor=(1.0, 0.5))
    ten = wires['10 Gbit/s']
    return Result(CLAIM, [Table(header, rows, 'Speed-up of 16 devices over 8')], [
        f'Over 10 Gbit/s a step spends {ten.once:.2f} s on the wire: 16 devices are faster than 8 if a step computes '
        f'longer than that, and {speed_up(measured, ten.once):.2f}x as fast with a step that takes {measured:.2f} s.',
        f'If every device pulled for itself the wire would take {ten.repeated:.2f} s: reading each weight once per '
        f'machine is worth {ten.repeated / ten.once:.0f}x there.'], figure, emulated)
