"""Where the boxes and arrows of a way's picture are: machines hold devices, arrows join devices. No SVG here."""

import collections
import dataclasses
from collections.abc import Sequence

from inception_mg.placement import machine_of
from inception_mg.report.fold import fold
from inception_mg.report.plan import GRADIENTS, OTHER, WEIGHTS
from inception_mg.report.summary import DeviceRow, PairRow, WayReport
from inception_mg.training.timeline import size_text

PAD, BOX, GAP, INSIDE, BETWEEN = 8, 92, 16, 104, 160   # In the picture's own units, about pixels.
HEAD, LINE, ARROW, ROUND = 25, 17, 18, 96   # A title, a line of text, an arrow's end, arrows that go round.
THICKEST, THINNEST, UNDER = 18.0, 1.2, 4   # Stroke widths; between two arrows that pass under a box.
Point = tuple[float, float]


@dataclasses.dataclass(eq=False)
class Box:
    """A device on the paper. rank: its column: 0 a ps, 1 a machine's CPU, 2 a machine's other devices."""

    row: DeviceRow
    rank: int
    lines: list[str]
    x: float = 0.0
    y: float = 0.0
    width: float = BOX
    height: float = 0.0

    @property
    def task(self) -> str:
        """The machine that it is in."""
        return machine_of(self.row.device)

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def edge(self, side: str) -> float:
        """The x of a side, 'left' or 'right'."""
        return self.x if side == 'left' else self.x + self.width


@dataclasses.dataclass(eq=False)
class Arrow:
    """A flow on the paper: from `start` over the points `via` to `finish`, leaving and entering sideways."""

    flow: PairRow
    source: Box
    target: Box
    thickness: float
    start: Point = (0.0, 0.0)
    via: tuple[Point, ...] = ()
    finish: Point = (0.0, 0.0)

    @property
    def sides(self) -> tuple[str, str]:
        """Which sides it leaves and enters: facing ones, or both on the right within a column."""
        if self.source.rank == self.target.rank:
            return 'right', 'right'
        return ('right', 'left') if self.source.rank < self.target.rank else ('left', 'right')

    @property
    def crosses_network(self) -> bool:
        return self.source.task != self.target.task

    @property
    def passes(self) -> bool:
        """Whether a box is in its way."""
        return abs(self.source.rank - self.target.rank) == 2

    @property
    def end_y(self) -> float:
        """The height of the end at the box of higher rank."""
        return (self.start if self.source.rank > self.target.rank else self.finish)[1]

    def end_at(self, box: Box) -> str:
        """The side of `box` on which it ends."""
        return self.sides[0] if box is self.source else self.sides[1]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A picture's boxes, by machine, and its arrows, the thickest first. counts: machine -> how many it stands for,
    where that is not itself alone."""

    machines: dict[str, list[Box]]
    arrows: list[Arrow]
    width: float
    height: float
    counts: dict[str, int]


def lay_out(way: WayReport, scale: float) -> Layout:
    """Gives every device and every flow of `way` its place; the ps are on the left, workers on the right.

    scale: bytes of the thickest arrow. Counters and rates are left out, and devices that neither hold nor get anything.
    Of many machines one of each is drawn (see `fold`).
    """
    way, counts = fold(way)
    flows = [row for row in way.pairs if row.measured and row.kind != OTHER]
    ends = {device for flow in flows for device in (flow.source, flow.target)}
    averaging = {flow.target for flow in flows if flow.kind == GRADIENTS}
    boxes = {row.device: Box(row, _rank(row.device), _lines(row, row.device in averaging)) for row in way.devices
             if row.bytes or row.towers or row.device in ends}
    arrows = [Arrow(flow, boxes[flow.source], boxes[flow.target], max(THINNEST, THICKEST * flow.measured / scale))
              for flow in flows]
    machines: dict[str, list[Box]] = {}
    for box in boxes.values():
        machines.setdefault(box.task, []).append(box)
        box.height = max(LINE * (len(box.lines) + 1) + 14, *(
            sum(map(_room, _at(box, side, arrows))) + 10 for side in ('left', 'right')))
    width, height = _place(machines, arrows)
    for box in boxes.values():
        for side in ('left', 'right'):
            _spread(box, side, _at(box, side, arrows))
    _lead_under(machines, arrows)
    return Layout(machines, sorted(arrows, key=lambda arrow: -arrow.thickness), width, height, counts)


def machine_bottom(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> float:
    """The lower edge of a machine: below its boxes and what passes under them."""
    passing = sum(arrow.thickness + UNDER for arrow in arrows
                  if arrow.passes and boxes[0].task in (arrow.source.task, arrow.target.task))
    under = max((box.bottom for box in boxes if box.rank == 1), default=0.0) + passing
    return max(under, *(box.bottom for box in boxes)) + PAD


def _rank(device: str) -> int:
    if device.startswith('/job:ps'):
        return 0
    return 1 if device.endswith('CPU:0') else 2


def _lines(row: DeviceRow, averages: bool) -> list[str]:
    """What is written in a box."""
    lines = [line for text in row.towers for line in text.replace('part of ', 'part of\n').split('\n')]
    if row.bytes:
        lines += ['variables', size_text(sum(row.bytes.values()))]
    return lines or (['reads,', 'averages'] if averages else ['reads'])


def _at(box: Box, side: str, arrows: Sequence[Arrow]) -> list[Arrow]:
    return [arrow for arrow in arrows if box in (arrow.source, arrow.target) and arrow.end_at(box) == side]


def _room(arrow: Arrow) -> float:
    return max(ARROW, arrow.thickness + 5)


def _place(machines: dict[str, list[Box]], arrows: Sequence[Arrow]) -> tuple[float, float]:
    """Gives every box its place; returns width and height of the picture."""
    is_ps = {task: boxes[0].rank == 0 for task, boxes in machines.items()}
    left = {True: 2 * PAD, False: 2 * PAD + (2 * PAD + BOX + BETWEEN if any(is_ps.values()) else 0)}
    tops = {True: float(PAD), False: float(PAD)}
    for task, boxes in machines.items():
        columns = [[box for box in boxes if box.rank != 2], [box for box in boxes if box.rank == 2]]
        tall = max(sum(box.height + GAP for box in column) - GAP for column in columns)
        for number, column in enumerate(columns):
            y = tops[is_ps[task]] + HEAD + (tall - sum(box.height + GAP for box in column) + GAP) / 2
            for box in column:  # The shorter column is centred beside the taller one.
                box.x, box.y, y = left[is_ps[task]] + number * (BOX + INSIDE), y, y + box.height + GAP
        tops[is_ps[task]] = machine_bottom(boxes, arrows) + GAP
    for task, boxes in machines.items():  # The ps are in the middle beside the workers, or the other way round.
        if len(set(is_ps.values())) == 2:
            for box in boxes:
                box.y += (max(tops.values()) - tops[is_ps[task]]) / 2
    right = max(box.x + box.width for boxes in machines.values() for box in boxes)
    round_about = ROUND if any(arrow.source.rank == arrow.target.rank for arrow in arrows) else 0
    return right + 2 * PAD + round_about, max(tops.values()) - GAP + PAD


def _spread(box: Box, side: str, arrows: list[Arrow]) -> None:
    """Gives each arrow's end its place along the side, in the order of the other ends, so that few cross."""
    def order(arrow: Arrow) -> tuple:
        other = arrow.target if arrow.source is box else arrow.source
        return box.rank == 2 and arrow.passes, other.y, arrow.passes, arrow.flow.kind != WEIGHTS, -arrow.flow.measured

    y = box.y + (box.height - sum(map(_room, arrows))) / 2
    for arrow in sorted(arrows, key=order):
        end = box.edge(side), y + _room(arrow) / 2
        y += _room(arrow)
        if arrow.source is box:
            arrow.start = end
        else:
            arrow.finish = end


def _lead_under(machines: dict[str, list[Box]], arrows: Sequence[Arrow]) -> None:
    """Leads the arrows between a ps and a worker's device under the worker's CPU."""
    passed = collections.Counter()
    for arrow in sorted(arrows, key=lambda arrow: arrow.end_y):  # So that they do not cross on the way down.
        if arrow.passes:
            far = max(arrow.source, arrow.target, key=lambda box: box.rank)
            under = next(box for box in machines[far.task] if box.rank == 1)
            y = under.bottom + passed[far.task] + UNDER + arrow.thickness / 2
            passed[far.task] += arrow.thickness + UNDER
            points = (under.x, y), (under.x + under.width, y)
            arrow.via = points if far is arrow.target else points[::-1]
