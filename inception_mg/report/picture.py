"""A way of running as an SVG picture: machines are boxes, devices sit in them, arrows are as thick as their bytes."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from html import escape

from inception_mg.report.plan import ACTIVATIONS, GRADIENTS, INPUT, OTHER, STATISTICS, WEIGHTS, task_name
from inception_mg.report.records import task_of
from inception_mg.report.summary import DeviceRow, PairRow, WayReport

WIDTH, PAD, BOX, GAP, INSIDE = 440, 8, 76, 14, 68   # In the picture's own units, about pixels.
HEAD, LINE, ARROW, ROUND = 22, 14, 15, 76   # A title, a line of text, an arrow's end, arrows that go round.
THICKEST, THINNEST, LABELLED = 16.0, 1.2, 0.01   # Stroke widths; the share of the thickest that gets a label.
NAMES = {WEIGHTS: 'weights', GRADIENTS: 'gradients', ACTIVATIONS: 'activations', INPUT: 'images and labels',
         STATISTICS: 'batch statistics', OTHER: 'counters and rates'}
# One colour per kind, for a light and for a dark page; each has a contrast of at least 3 to the page.
COLOURS = {WEIGHTS: ('#1f6fc4', '#6aaef5'), GRADIENTS: ('#c2500f', '#f59a56'), ACTIVATIONS: ('#2e7d4f', '#6cc893'),
           INPUT: ('#7a4fb5', '#b996ee'), STATISTICS: ('#8a6d00', '#d9bd4a'), OTHER: ('#6b7280', '#9aa3af')}
LIGHT = {'paper': '#ffffff', 'ink': '#1c2430', 'soft': '#55606e', 'machine': '#f2f4f7', 'device': '#ffffff',
         'edge': '#b4bdc9'}
DARK = {'paper': '#12161c', 'ink': '#e8edf3', 'soft': '#a3aebb', 'machine': '#1c222b', 'device': '#262e39',
        'edge': '#4a5665'}
RULES = ('.machine{fill:var(--machine);stroke:var(--edge)}.device{fill:var(--device);stroke:var(--edge)}'
         '.flow{fill:none;stroke-opacity:.82}svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;'
         'font-size:12px;fill:var(--ink)}svg .head{font-weight:600;font-size:13px}'
         'svg .soft{fill:var(--soft);font-size:11px}'
         'svg .bytes{font-size:11px;font-weight:600;paint-order:stroke;stroke:var(--machine);stroke-width:3.5px;'
         'stroke-linejoin:round}svg .wire .bytes{stroke:var(--paper)}')


def colour_rules(selector: str) -> str:
    """The CSS that names all colours, light and, where the reader prefers that, dark."""
    def block(which: int, plain: dict[str, str]) -> str:
        kinds = ''.join(f'--{kind}:{pair[which]};' for kind, pair in COLOURS.items())
        return f'{selector}{{{"".join(f"--{name}:{value};" for name, value in plain.items())}{kinds}}}'
    flows = ''.join(f'.flow.{kind}{{stroke:var(--{kind})}}svg .bytes.{kind},.tip.{kind}{{fill:var(--{kind})}}'
                    for kind in COLOURS)
    return f'{block(0, LIGHT)}@media (prefers-color-scheme:dark){{{block(1, DARK)}}}{RULES}{flows}'


@dataclasses.dataclass
class _Box:
    """A device on the paper. sides: for the left, right, and bulging side the ends of arrows, by number of arrow."""

    device: str
    lines: list[str]
    x: float = 0.0
    y: float = 0.0
    width: float = BOX
    height: float = 0.0
    ends: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    places: dict[tuple[str, int], float] = dataclasses.field(default_factory=dict)

    def edge(self, side: str) -> float:
        """The x of a side."""
        return self.x if side == 'left' else self.x + self.width


def draw(way: WayReport, scale: float, standalone: bool = True) -> str:
    """Returns the SVG of a way.

    scale: bytes of the thickest arrow, the same for all pictures of a page. standalone: with colours of its own, for a
    file; else those of the page hold.
    """
    flows = [row for row in way.pairs if row.measured and row.kind != OTHER]
    boxes = {row.device: _Box(row.device, _lines(row)) for row in way.devices
             if row.bytes or row.towers or any(row.device in (flow.source, flow.target) for flow in flows)}
    machines = _columns(boxes)
    _ends(boxes, flows)
    height = _lay_out(machines)
    _spread(boxes, flows, scale)
    parts = [_machine(task, column) for task, column in machines.items()]
    parts += [_arrow(boxes, number, flow, scale) for number, flow in sorted(
        enumerate(flows), key=lambda pair: -pair[1].measured)]
    parts += [_device(box) for box in boxes.values()]
    parts += [_label(boxes, number, flow, scale) for number, flow in enumerate(flows)]
    style = f'<style>{colour_rules("svg")}</style><rect width="100%" height="100%" fill="var(--paper)"/>'
    style = style if standalone else ''
    name = way.name
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(way.title)}</title>'
            f'<desc id="{name}-desc">{escape(_describe(flows))}</desc>{style}{"".join(parts)}</svg>')


def size_text(size: float) -> str:
    """'109 MB', '2.1 MB', '17 kB': three digits at most."""
    for unit, factor in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if size >= factor:
            value = size / factor
            return f'{value:.0f} {unit}' if value >= 99.5 else f'{value:.3g} {unit}'
    return f'{size:.0f} B'


def device_name(device: str) -> str:
    """'/job:ps/task:0/device:CPU:0' -> 'CPU 0'."""
    return device.rpartition('/device:')[2].replace(':', ' ')


def full_name(device: str) -> str:
    """'ps 0, CPU 0'; without a cluster 'CPU 0'."""
    return f'{task_name(device)}, {device_name(device)}' if task_of(device) else device_name(device)


def _lines(row: DeviceRow) -> list[str]:
    lines = [line for text in row.towers for line in text.replace('part of ', 'part of\n').split('\n')]
    if row.bytes:
        lines += ['variables', size_text(sum(row.bytes.values()))]
    return lines or ['reads,', 'averages']


def _columns(boxes: dict[str, _Box]) -> dict[str, list[list[_Box]]]:
    """Task -> its columns of boxes, left to right: the machine's own CPU, then its other devices."""
    machines: dict[str, list[list[_Box]]] = {}
    for box in boxes.values():
        columns = machines.setdefault(task_of(box.device), [[], []])
        columns[0 if box.device.endswith('CPU:0') else 1].append(box)
    return machines


def _sides(source: _Box, target: _Box) -> tuple[str, str]:
    """Which sides an arrow leaves and enters: facing ones, or both on the right within a column."""
    if _rank(source) == _rank(target):
        return 'right', 'right'
    return ('right', 'left') if _rank(source) < _rank(target) else ('left', 'right')


def _rank(box: _Box) -> int:
    """The column on the paper: ps, then the machines' CPUs, then their other devices."""
    if task_of(box.device).startswith('/job:ps'):
        return 0
    return 1 if box.device.endswith('CPU:0') else 2


def _ends(boxes: dict[str, _Box], flows: Sequence[PairRow]) -> None:
    """Notes at each box which arrows end on which side."""
    for number, flow in enumerate(flows):
        leave, enter = _sides(boxes[flow.source], boxes[flow.target])
        boxes[flow.source].ends[leave].append(number)
        boxes[flow.target].ends[enter].append(number)


def _lay_out(machines: dict[str, list[list[_Box]]]) -> float:
    """Gives every box its place; returns the height of the picture. The ps are on the left, workers on the right."""
    split = any(task.startswith('/job:ps') for task in machines)
    tops = {True: PAD, False: PAD}
    for task, columns in machines.items():
        is_ps = task.startswith('/job:ps')
        left = PAD if is_ps or not split else WIDTH - 3 * PAD - 2 * BOX - INSIDE
        right = WIDTH - 2 * PAD - BOX - (0 if split else ROUND)
        for column, x in zip(columns, (left + PAD, right), strict=True):
            y = tops[is_ps] + HEAD + 4
            for box in column:
                ends = max((len(numbers) for numbers in box.ends.values()), default=0)
                box.height = max(LINE * (len(box.lines) + 1) + 14, ARROW * ends + 12)
                box.x, box.y, y = x, y, y + box.height + GAP
        tallest = max(sum(box.height + GAP for box in column) for column in columns)
        for column in columns:
            if column:  # The shorter column is centred beside the taller one.
                slack = (tallest - sum(box.height + GAP for box in column)) / 2
                for box in column:
                    box.y += slack
        tops[is_ps] += HEAD + 4 + tallest + GAP
    _centre(machines, tops)
    return max(tops.values()) - GAP + PAD


def _centre(machines: dict[str, list[list[_Box]]], tops: dict[bool, float]) -> None:
    """Moves the ps down to the middle of the workers, or the other way round."""
    shift = (max(tops.values()) - min(tops.values())) / 2
    for task, columns in machines.items():
        if len({key.startswith('/job:ps') for key in machines}) == 2:
            if tops[task.startswith('/job:ps')] < max(tops.values()):
                for box in (box for column in columns for box in column):
                    box.y += shift


def _spread(boxes: dict[str, _Box], flows: Sequence[PairRow], scale: float) -> None:
    """Gives each arrow's end its place along the side, in the order of the other ends, so that few cross."""
    for box in boxes.values():
        for side, numbers in box.ends.items():
            def other(number: int, box=box) -> tuple:
                flow = flows[number]
                far = boxes[flow.target if flow.source == box.device else flow.source]
                return far.y, flow.kind not in (WEIGHTS, INPUT), -flow.measured
            room = box.height / len(numbers)
            for place, number in enumerate(sorted(numbers, key=other)):
                box.places[side, number] = box.y + room * (place + 0.5)


def _thickness(flow: PairRow, scale: float) -> float:
    return max(THINNEST, THICKEST * flow.measured / scale)


def _curve(boxes: dict[str, _Box], number: int, flow: PairRow) -> list[tuple[float, float]]:
    """The four points of the arrow's Bezier curve."""
    source, target = boxes[flow.source], boxes[flow.target]
    leave, enter = _sides(source, target)
    x0, y0 = source.edge(leave), source.places[leave, number]
    x3, y3 = target.edge(enter), target.places[enter, number]
    if leave == enter:
        bulge = 26 + 0.16 * abs(y3 - y0)
        return [(x0, y0), (x0 + bulge, y0), (x3 + bulge, y3), (x3, y3)]
    middle = (x0 + x3) / 2
    return [(x0, y0), (middle, y0), (middle, y3), (x3, y3)]


def _arrow(boxes: dict[str, _Box], number: int, flow: PairRow, scale: float) -> str:
    (x0, y0), one, two, (x3, y3) = _curve(boxes, number, flow)
    width = _thickness(flow, scale)
    head = max(4.0, width * 0.9)
    back = head if _sides(boxes[flow.source], boxes[flow.target])[1] == 'right' else -head
    tip = f'{x3:.1f},{y3:.1f} {x3 + back:.1f},{y3 - head * 0.8:.1f} {x3 + back:.1f},{y3 + head * 0.8:.1f}'
    what = (f'{flow.measured:,} bytes of {NAMES[flow.kind]} in {flow.tensors} tensors from {full_name(flow.source)} to '
            f'{full_name(flow.target)}')
    path = f'M{x0:.1f},{y0:.1f} C{one[0]:.1f},{one[1]:.1f} {two[0] + back:.1f},{two[1]:.1f} {x3 + back:.1f},{y3:.1f}'
    return (f'<g><title>{escape(what)}</title><path class="flow {flow.kind}" stroke-width="{width:.1f}" d="{path}"/>'
            f'<polygon class="tip {flow.kind}" points="{tip}"/></g>')


def _label(boxes: dict[str, _Box], number: int, flow: PairRow, scale: float) -> str:
    """The bytes beside the end at which arrows are farthest apart: that of the worker or of the device."""
    if flow.measured < LABELLED * scale:
        return ''
    points = _curve(boxes, number, flow)
    source, target = boxes[flow.source], boxes[flow.target]
    same = _rank(source) == _rank(target)
    at = 0.5 if same else 0.68 if _rank(target) > _rank(source) else 0.32
    weights = ((1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at ** 2 * (1 - at), at ** 3)
    x, y = (sum(weight * point[axis] for weight, point in zip(weights, points, strict=True)) for axis in (0, 1))
    wire = ' class="wire"' if task_of(flow.source) != task_of(flow.target) else ''
    if same:
        x, anchor = x + _thickness(flow, scale) / 2 + 3, 'start'
    else:
        anchor = 'middle'
    return (f'<g{wire}><text class="bytes {flow.kind}" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">'
            f'{size_text(flow.measured)}</text></g>')


def _machine(task: str, columns: list[list[_Box]]) -> str:
    every = [box for column in columns for box in column]
    left, top = min(box.x for box in every) - PAD, min(box.y for box in every) - HEAD - 4
    bottom = max(box.y + box.height for box in every) + PAD
    right = WIDTH - PAD if columns[1] else max(box.x + box.width for box in every) + PAD
    return (f'<rect class="machine" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" rx="9"/>'
            f'<text class="head" x="{left + PAD:.1f}" y="{top + 17:.1f}">{escape(task_name(task))}</text>')


def _device(box: _Box) -> str:
    lines = [f'<text class="head" x="{box.x + box.width / 2:.1f}" y="{_line(box, 0):.1f}" text-anchor="middle">'
             f'{escape(device_name(box.device))}</text>']
    lines += [f'<text class="soft" x="{box.x + box.width / 2:.1f}" y="{_line(box, number):.1f}" text-anchor="middle">'
              f'{escape(text)}</text>' for number, text in enumerate(box.lines, start=1)]
    return (f'<rect class="device" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
            f'rx="6"/>{"".join(lines)}')


def _line(box: _Box, number: int) -> float:
    """The baseline of a line of text; the lines are in the middle of the box."""
    return box.y + (box.height - LINE * (len(box.lines) + 1)) / 2 + LINE * (number + 0.8)


def _describe(flows: Iterable[PairRow]) -> str:
    """The picture in words, for those who cannot see it."""
    return '; '.join(f'{size_text(flow.measured)} of {NAMES[flow.kind]} from {full_name(flow.source)} to '
                     f'{full_name(flow.target)}' for flow in flows)
