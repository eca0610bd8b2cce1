"""Claim 7: 16 devices on two machines against 8 in one, by the planner: from the time of a step and what it moves."""

import numpy as np

from dist.experiments import figures
from dist.experiments.measure import step_seconds_here
from dist.experiments.result import Request, Result, Table
from dist.planner.model import Job, synchronous
from dist.planner.networks import network, trained
from dist.planner.placing import largest_first
from dist.planner.published import solve

NETWORKS = {'1 Gbit/s': 0.125e9, '10 Gbit/s': 1.25e9, '25 Gbit/s': 3.125e9, '100 Gbit/s': 12.5e9}  # Bytes/s each way.
DEVICES, MACHINES, NUM_PS = 8, 2, 2
EXAMPLES = (0.1, 0.5, 2.0)  # Seconds of computing in the table.
CLAIM = ('16 devices on two machines beat 8 in one only where a step computes longer than its weights and gradients '
         'travel; they double it only where it computes much longer.')


def run(request: Request) -> Result:
    """Measures a step of Inception v3 here, and asks the planner what wires do to it."""
    batch, steps = (32, 5) if request.full else (8, 2)
    return summarise(step_seconds_here(batch, steps), batch)


def speed_up(compute: float, rate: float, per_device: bool = False) -> float:
    """Images per second of 16 devices on two machines, over those of 8 in one, which pays nothing for a wire.

    rate: bytes/s each way of every machine and ps. per_device: each device pulls and pushes for itself, as 16 workers
    of one device would; else its machine does, once for all of them, as build_towers does.
    """
    net, clients = network('inception_v3'), DEVICES if per_device else 1
    job = Job(trained(net), largest_first(net, NUM_PS), MACHINES * clients, compute, 1, rate, rate / clients,
              spread=0.0, shuffled=True)
    return MACHINES * compute / synchronous(job).step


def even(rate: float, per_device: bool = False) -> float:
    """The computing, in seconds of a step, from which two machines are faster than one."""
    return solve(lambda seconds: speed_up(seconds, rate, per_device) - 1, 1e-4, 1e3)


def summarise(measured: float, batch: int) -> Result:
    """measured: seconds of a step of `batch` images here."""
    emulated = (f'by the planner: synchronous, {MACHINES} machines of {DEVICES} devices and {NUM_PS} ps on machines of '
                'their own, layers overlap with transfers, weights come in no order, averaging inside a machine costs '
                f'nothing; measured are the bytes and the processor time of a step of {batch} images here, '
                f'{measured:.2f} s on every core')
    rows = [(name, even(rate), *(speed_up(seconds, rate) for seconds in (*EXAMPLES, measured)),
             speed_up(EXAMPLES[1], rate, per_device=True)) for name, rate in NETWORKS.items()]
    header = ('network', 'even at this compute, s', *(f'compute {seconds:g} s' for seconds in EXAMPLES),
              f'{measured:.2f} s (here)', f'{EXAMPLES[1]:g} s, each device pulls for itself')
    figure, (axis,) = figures.panels(
        ['16 devices on two machines against 8 in one'],
        [('seconds of computing in a step', 'speed-up (images per second)')],
        f'Model: {emulated}', width=7.4, height=4.2)
    times = np.geomspace(0.01, 20, 60)
    for (name, rate), colour in zip(NETWORKS.items(), figures.COLOURS, strict=False):
        axis.plot(times, [speed_up(seconds, rate) for seconds in times], color=colour, label=name)
        axis.plot(times, [speed_up(seconds, rate, per_device=True) for seconds in times], color=colour, linestyle=':',
                  alpha=0.7)
    axis.plot([], [], color=figures.GREY, linestyle=':', label='each device pulls for itself')
    axis.axhline(1, color='black', linewidth=0.8)
    axis.axvline(measured, color=figures.GREY, linestyle='--', linewidth=1, label=f'this machine, {batch} images')
    axis.set_xscale('log')
    axis.set_ylim(0, 2.05)
    figures.legend(axis, loc='center left', bbox_to_anchor=(1.0, 0.5))
    ten = NETWORKS['10 Gbit/s']
    return Result(CLAIM, [Table(header, rows, 'Speed-up of 16 devices over 8')], [
        f'Over 10 Gbit/s 16 devices are faster than 8 if a step computes for more than {even(ten):.2f} s, and '
        f'{speed_up(measured, ten):.2f}x as fast with a step that takes {measured:.2f} s.',
        f'If every device pulled for itself it would have to compute for {even(ten, per_device=True):.2f} s: reading '
        f'each weight once per machine is worth {even(ten, per_device=True) / even(ten):.1f}x there.'],
        figure, emulated)
