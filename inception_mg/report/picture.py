"""A way of running as an SVG picture: machines are boxes, devices sit in them, arrows are as thick as their bytes."""

from html import escape

from inception_mg.placement import task_name
from inception_mg.report.labels import NAMES, device_name, full_name
from inception_mg.report.layout import HEAD, LINE, PAD, THINNEST, Arrow, Box, Layout, Point, lay_out, machine_bottom
from inception_mg.report.plan import ACTIVATIONS, GRADIENTS, INPUT, OTHER, STATISTICS, WEIGHTS
from inception_mg.report.summary import WayReport
from inception_mg.training.timeline import size_text

# One colour per kind, for a light and for a dark page; each has a contrast of at least 3 to the page.
COLOURS = {WEIGHTS: ('#1f6fc4', '#6aaef5'), GRADIENTS: ('#c2500f', '#f59a56'), ACTIVATIONS: ('#2e7d4f', '#6cc893'),
           INPUT: ('#7a4fb5', '#b996ee'), STATISTICS: ('#8a6d00', '#d9bd4a'), OTHER: ('#6b7280', '#9aa3af')}
LIGHT = {'paper': '#ffffff', 'ink': '#1c2430', 'soft': '#55606e', 'machine': '#f2f4f7', 'device': '#ffffff',
         'edge': '#b4bdc9'}
DARK = {'paper': '#12161c', 'ink': '#e8edf3', 'soft': '#a3aebb', 'machine': '#1c222b', 'device': '#262e39',
        'edge': '#4a5665'}
RULES = ('.machine{fill:var(--machine);stroke:var(--edge)}.device{fill:var(--device);stroke:var(--edge)}'
         '.flow{fill:none;stroke-opacity:.85}'
         'svg text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink);text-anchor:middle}'
         'svg .head{font-weight:600;font-size:14px}svg .soft{fill:var(--soft);font-size:12px;font-weight:400}'
         'svg .left{text-anchor:start}'
         'svg .bytes{font-size:12px;font-weight:700;paint-order:stroke;stroke:var(--machine);stroke-width:5px;'
         'stroke-linejoin:round}svg .wire{stroke:var(--paper)}'
         # On a small screen a wide picture shrinks; its letters shrink less, as far as the boxes have room.
         '@media(max-width:520px){svg.wide text,svg.wide .soft,svg.wide .bytes,svg.wide .head{font-size:17px}}')
WIDE = 450  # Pictures that are wider than this, in their own units.


def colour_rules(selector: str) -> str:
    """The CSS that names all colours, light and, where the reader prefers that, dark."""
    def block(which: int, plain: dict[str, str]) -> str:
        kinds = ''.join(f'--{kind}:{pair[which]};' for kind, pair in COLOURS.items())
        return f'{selector}{{{"".join(f"--{name}:{value};" for name, value in plain.items())}{kinds}}}'
    flows = ''.join(f'.flow.{kind}{{stroke:var(--{kind})}}svg .bytes.{kind},.tip.{kind}{{fill:var(--{kind})}}'
                    for kind in COLOURS)
    return f'{block(0, LIGHT)}@media (prefers-color-scheme:dark){{{block(1, DARK)}}}{RULES}{flows}'


def draw(way: WayReport, scale: float, standalone: bool = True) -> str:
    """Returns the SVG of a way.

    scale: bytes of the thickest arrow, the same for all pictures of a page. standalone: with colours of its own, for a
    file; else those of the page hold.
    """
    layout = lay_out(way, scale)
    parts = [_machine(task, boxes, layout, way.clients) for task, boxes in layout.machines.items()]
    parts += [_network(layout)]
    parts += map(_arrow, layout.arrows)
    parts += [_device(box) for boxes in layout.machines.values() for box in boxes]
    parts += map(_label, layout.arrows)
    style = f'<style>{colour_rules("svg")}</style><rect width="100%" height="100%" fill="var(--paper)"/>'
    width, height = round(layout.width), round(layout.height)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'class="{"wide" if width > WIDE else "slim"}" style="max-width:{1.1 * width:.0f}px" role="img" '
            f'aria-labelledby="{way.name}-title {way.name}-desc">'
            f'<title id="{way.name}-title">{escape(way.title)}</title>'
            f'<desc id="{way.name}-desc">{escape(_describe(layout))}</desc>{style if standalone else ""}'
            f'{"".join(parts)}</svg>')


def _machine(task: str, boxes: list[Box], layout: Layout, clients: list[str]) -> str:
    left, top = min(box.x for box in boxes) - PAD, min(box.y for box in boxes) - HEAD
    right = max(box.x + box.width for box in boxes) + PAD
    if any(arrow.source.rank == arrow.target.rank and arrow.source in boxes for arrow in layout.arrows):
        right = layout.width - PAD  # What goes from device to device goes round within the machine.
    count = layout.counts.get(task, 1)
    words = ('each its own client' if count > 1 else 'its own client') if len(clients) > 1 else (
        '0 is the only client' if count > 1 else 'the only client')
    client = f'<tspan class="soft" dx="6">{words}</tspan>'
    name = f'{task_name(task).partition(" ")[0]} x {count}' if count > 1 else task_name(task)
    return (f'<rect class="machine" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{machine_bottom(boxes, layout.arrows) - top:.1f}" rx="9"/>'
            f'<text class="head left" x="{left + PAD:.1f}" y="{top + 17:.1f}">{escape(name)}'
            f'{client if task and task in clients else ""}</text>')


def _network(layout: Layout) -> str:
    """The word between the machines."""
    ends = [box.edge(side) for arrow in layout.arrows if arrow.crosses_network
            for box, side in zip((arrow.source, arrow.target), arrow.sides, strict=True) if box.rank < 2]
    if not ends:
        return ''
    return f'<text class="soft" x="{(min(ends) + max(ends)) / 2:.1f}" y="{PAD + 13}">network</text>'


def _device(box: Box) -> str:
    middle, first = box.x + box.width / 2, box.y + (box.height - LINE * (len(box.lines) + 1)) / 2 + 0.8 * LINE
    lines = [f'<text class="{"soft" if number else "head"}" x="{middle:.1f}" y="{first + LINE * number:.1f}">'
             f'{escape(text)}</text>' for number, text in enumerate([device_name(box.row.device), *box.lines])]
    return (f'<rect class="device" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
            f'rx="6"/>{"".join(lines)}')


def _arrow(arrow: Arrow) -> str:
    kind, head = arrow.flow.kind, max(5.0, arrow.thickness * 0.9)
    x, y = arrow.finish
    back = x + (head if arrow.sides[1] == 'right' else -head)
    path = f'M{arrow.start[0]:.1f},{arrow.start[1]:.1f}' + ''.join(
        f' C{" ".join(f"{px:.1f},{py:.1f}" for px, py in curve[1:])}' for curve in _curves(arrow, back))
    return (f'<g><title>{escape(_words(arrow))}</title>'
            f'<path class="flow {kind}" stroke-width="{arrow.thickness:.1f}" d="{path}"/><polygon class="tip {kind}" '
            f'points="{x:.1f},{y:.1f} {back:.1f},{y - head * 0.8:.1f} {back:.1f},{y + head * 0.8:.1f}"/></g>')


def _curves(arrow: Arrow, back: float) -> list[tuple[Point, Point, Point, Point]]:
    """The Bezier curves of an arrow up to the `back` of its head; all begin and end sideways."""
    points = [arrow.start, *arrow.via, (back, arrow.finish[1])]
    if arrow.source.rank == arrow.target.rank:
        bulge = max(points[0][0], back) + 22 + 0.16 * abs(points[1][1] - points[0][1])
        return [(points[0], (bulge, points[0][1]), (bulge, points[1][1]), points[1])]
    return [((x0, y0), ((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1))
            for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False)]


def _label(arrow: Arrow) -> str:
    """The bytes, on the arrow where it is farthest from others: near the worker that it comes from or goes to."""
    if arrow.passes and arrow.thickness <= THINNEST:
        return ''  # A thin line across others: the tables say how much it is.
    curves, at = _curves(arrow, arrow.finish[0]), 0.5
    curve = curves[0 if arrow.target.rank > arrow.source.rank else -1]
    if arrow.crosses_network:
        at = 0.74 if arrow.target.rank > arrow.source.rank else 0.26
    shares = ((1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at ** 2 * (1 - at), at ** 3)
    x, y = (sum(share * point[axis] for share, point in zip(shares, curve, strict=True)) for axis in (0, 1))
    beside = ' left' if arrow.source.rank == arrow.target.rank else ''
    x += (arrow.thickness / 2 + 4) * bool(beside)
    return (f'<text class="bytes {arrow.flow.kind}{" wire" * arrow.crosses_network}{beside}" x="{x:.1f}" '
            f'y="{y + 4:.1f}">{size_text(arrow.flow.measured)}</text>')


def _words(arrow: Arrow) -> str:
    flow = arrow.flow
    return (f'{flow.measured:,} bytes of {NAMES[flow.kind]} in {flow.tensors} tensors from {full_name(flow.source)} to '
            f'{full_name(flow.target)}')


def _describe(layout: Layout) -> str:
    """The picture in words, for those who cannot see it."""
    once = [f'{task_name(task)} stands for {count}, with the most bytes of any of them'
            for task, count in layout.counts.items()]
    return '; '.join([*once, *map(_words, layout.arrows)])
