"""Claim 2: splitting one model gains exactly where branches are independent.

The network is that of training and so are the devices of its blocks; each convolution then holds its device for as
long as it would compute. What is seen is when each device was busy.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from dist.experiments import figures
from dist.experiments.result import Request, Result, Table
from dist.experiments.waiting import Busy, build_wait, threads
from inception_mg.data.progress import progress
from inception_mg.model.inception_v3 import inception_v3
from inception_mg.model.layers import Layers
from inception_mg.placement import Placement, one_device, split_model

v1 = tf.compat.v1
D = [f'/device:CPU:{number}' for number in range(4)]
PLACEMENTS = {
    'one device': one_device(D[0], D[0]), 'stages over 2': split_model([D[:2]], 'stages', D[0]),
    'stages over 4': split_model([D], 'stages', D[0]), 'branches over 2': split_model([D[:2]], 'branches', D[0]),
    'branches over 3': split_model([D[:3]], 'branches', D[0]), 'branches over 4': split_model([D], 'branches', D[0])}
SHOWN = ('one device', 'stages over 2', 'branches over 2', 'branches over 4')
CLAIM = ('For one batch, splitting a model gains exactly where branches are independent: consecutive stages wait for '
         'each other, the branches of a block do not.')


class Span(NamedTuple):
    """A convolution that held a device. begun, ended: seconds from the start of the pass."""

    device: str
    block: str
    begun: float
    ended: float


@dataclasses.dataclass
class CountingLayers(Layers):
    """Layers that count. costs: scope of each convolution -> multiply-adds for one image."""

    costs: dict[str, int] = dataclasses.field(default_factory=dict)

    def activate(self, net, made, relu=True):
        """As in Layers."""
        self.costs[v1.get_variable_scope().name] = net.shape[1] * net.shape[2] * made.kernel.shape.num_elements()
        return super().activate(net, made, relu)


@dataclasses.dataclass
class WaitingLayers(Layers):
    """Layers that keep their device busy. seconds: of each convolution, by scope. spans: what was seen."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    devices: dict[str, Busy] = dataclasses.field(default_factory=lambda: collections.defaultdict(Busy))
    spans: list[Span] = dataclasses.field(default_factory=list)

    def activate(self, net, made, relu=True):
        """As in Layers, and waits on the device that the placement gave the convolution."""
        out = super().activate(net, made, relu)
        name, device = v1.get_variable_scope().name, out.device
        busy = self.devices[device]

        def hold() -> None:
            self.spans.append(Span(device, block_of(name), *busy.hold(self.seconds[name])))

        return build_wait(out, hold)


def block_of(name: str) -> str:
    """The block of BLOCK_COST that a layer is in."""
    first = name.split('/')[0]
    return first if first.startswith('mixed') or first == 'aux_logits' else 'stem'


def run(request: Request) -> Result:
    """The quickest of three forward passes of Inception v3 over each placement."""
    total = 12.0 if request.full else 2.0
    costs = layer_costs()
    seconds = {name: total * cost / sum(costs.values()) for name, cost in costs.items()}
    spans = {name: forward(PLACEMENTS[name], seconds)
             for name in progress(PLACEMENTS, len(PLACEMENTS), 'split_gain', 'placements')}
    return summarise(spans, costs, seconds)


def layer_costs(size: int = 299) -> dict[str, int]:
    """Multiply-adds of every convolution of Inception v3 (width 1), without the auxiliary head, for one image."""
    layers = CountingLayers(is_training=False, weight_decay=None)
    with tf.Graph().as_default():
        inception_v3(v1.placeholder(tf.float32, [1, size, size, 3]), 1001, layers, aux_head=False)
    return layers.costs


def forward(placement: Placement, seconds: dict[str, float], passes: int = 3) -> list[Span]:
    """Runs forward passes of a narrow network over `placement`, whose convolutions take `seconds`.

    Returns the quickest: a wait is never too short, but other programs of this machine can make it longer.
    """
    [tower] = placement.towers
    layers = WaitingLayers(is_training=False, width=0.05, weight_decay=None, seconds=seconds)
    config = threads(v1.ConfigProto(device_count={'CPU': len(D)}, use_per_session_threads=True), 16)
    with tf.Graph().as_default(), tf.device(tower.device):
        outputs = inception_v3(tf.zeros([1, 75, 75, 3]), 9, layers, branches=tower.branches, stages=tower.stages,
                               aux_head=False)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(passes):
                session.run(outputs.logits)
    each = len(layers.spans) // passes
    return min((from_zero(layers.spans[k * each:(k + 1) * each]) for k in range(passes)), key=length)


def from_zero(spans: Sequence[Span]) -> list[Span]:
    """The same spans with the first at 0 s."""
    begun = min(span.begun for span in spans)
    return [span._replace(begun=span.begun - begun, ended=span.ended - begun) for span in spans]


def length(spans: Sequence[Span]) -> float:
    """Seconds until the last one has ended."""
    return max(span.ended for span in spans)


def branch_seconds(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Block -> branch -> seconds; the stem is one branch."""
    found: dict[str, dict[str, float]] = {}
    for name, value in seconds.items():
        block = block_of(name)
        branch = name.split('/')[1] if block != 'stem' else 'stem'
        found.setdefault(block, collections.Counter())[branch] += value
    return found


def predicted(placement: Placement, seconds: dict[str, float]) -> float:
    """Seconds of the pass: of each block, those of the device that has most of its branches to do.

    The pooling branch of a block that halves the grid has no convolution, but takes its turn when branches are dealt.
    """
    [tower] = placement.towers
    total = 0.0
    for branches in branch_seconds(seconds).values():
        loads: collections.Counter[int] = collections.Counter()
        for number, value in enumerate(branches.values()):
            loads[number % len(tower.branches)] += value
        total += max(loads.values())
    return total


def summarise(spans: dict[str, list[Span]], costs: dict[str, int], seconds: dict[str, float]) -> Result:
    """A table of placements, one of blocks, and when each device was busy."""
    whole = sum(seconds.values())
    took = {name: length(found) for name, found in spans.items()}
    rows = [(name, predicted(PLACEMENTS[name], seconds), took[name], took['one device'] / took[name]) for name in spans]
    blocks = [(block, sum(parts.values()) / whole, len(parts), max(parts.values()) / whole,
               sum(parts.values()) / max(parts.values())) for block, parts in branch_seconds(seconds).items()]
    path = sum(row[3] for row in blocks)
    emulated = (f'each convolution holds its device for its share of {whole:g} s, by its multiply-adds at 299 x 299 '
                f'({sum(costs.values()) / 1e9:.1f} G per image); graph, devices and dependencies are real')
    tables = [Table(('placement', 'predicted, s', 'seen, s', 'gain'), rows, 'One forward pass, the quickest of three'),
              Table(('block', 'share of all work', 'branches', 'longest branch, share of all', 'gain at most'), blocks,
                    'Where a split can gain')]
    best = took['one device'] / took['branches over 4']
    return Result(CLAIM, tables, [
        f'Stages over 2 and 4 devices: {rows[1][3]:.2f}x and {rows[2][3]:.2f}x. Branches over 2 and 4: '
        f'{rows[3][3]:.2f}x and {best:.2f}x.',
        f'The stem, {blocks[0][1]:.0%} of the work, has no branches. The longest branches and the stem are together '
        f'{path:.0%} of all: no number of devices gains more than {1 / path:.2f}x. (Links that cost nothing; real ones '
        'take away from it.)'], draw(spans, f'Emulated: {emulated}'), emulated)


def draw(spans: dict[str, list[Span]], note: str):
    """A row per device of each placement, a bar per convolution, coloured by block."""
    blocks = list(dict.fromkeys(span.block for span in sorted(spans['one device'], key=lambda span: span.begun)))
    colours = {block: ('#c9c9c9', *figures.COLOURS)[k] for k, block in enumerate(blocks)}
    figure, (axis,) = figures.panels(['When each device is busy in one forward pass'], [('seconds', '')], note,
                                     width=9.2, height=4.2)
    place, ticks = 0.0, {}
    for name in SHOWN:
        for device in sorted({span.device for span in spans[name]}):
            mine = [span for span in spans[name] if span.device == device]
            axis.broken_barh([(span.begun, span.ended - span.begun) for span in mine], (place - 0.4, 0.8),
                             facecolors=[colours[span.block] for span in mine], edgecolor='white', linewidth=0.3)
            ticks[place] = f'{name}: {device.rpartition(":")[2]}'
            place -= 1
        place -= 0.6
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.grid(False, axis='y')
    for block in blocks:
        axis.barh(0, 0, color=colours[block], label=block.removeprefix('mixed_'))
    figures.legend(axis, loc='center left', bbox_to_anchor=(1.0, 0.5))
    return figure
