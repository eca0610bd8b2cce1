"""The report for people: one HTML page without anything from outside, and the same as text for a screen."""

from collections.abc import Iterable, Sequence
from html import escape

from inception_mg.report.picture import COLOURS, NAMES, colour_rules, draw, full_name, size_text
from inception_mg.report.plan import OTHER, task_name
from inception_mg.report.summary import WayReport

_TITLE = 'What sits where, and what crosses which wire'
_STYLE = '''
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1400px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 8px}h2{font-size:1.05rem;margin:0 0 2px}p{margin:0 0 10px;max-width:75ch}
.soft{color:var(--soft)}.legend{display:flex;flex-wrap:wrap;gap:6px 20px;padding:0;margin:14px 0 20px;list-style:none}
.legend span{display:inline-block;width:26px;height:9px;border-radius:5px;margin-right:7px}
.ways{display:grid;gap:18px;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));align-items:start}
section{border:1px solid var(--edge);border-radius:12px;padding:16px;min-width:0}section svg{display:block;width:100%;
height:auto;margin:8px 0}details{margin-top:8px}summary{cursor:pointer;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.82rem;margin:6px 0 12px;width:100%}caption{text-align:left;font-weight:600;
padding:4px 0}th,td{padding:3px 10px 3px 0;text-align:left;border-bottom:1px solid var(--edge);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
section p{font-size:.86rem;margin:0 0 6px}.verdict{font-weight:600;margin-top:8px}
.bar{display:flex;height:10px;border-radius:5px;overflow:hidden;background:var(--edge)}.bar i{display:block}
.ok::before{content:"\\2713  ";color:var(--activations)}.bad::before{content:"\\2717  ";color:var(--gradients)}
'''
_SHARE_COLOURS = {'compute': 'activations', 'wire': 'weights', 'input': 'input', 'waiting': 'other'}


def html_page(ways: Sequence[WayReport], subject: str, notes: Sequence[str]) -> str:
    """Returns the page. subject: the model in words. notes: what the reader should know of how it was measured."""
    scale = thickest(ways)
    legend = ''.join(f'<li><span style="background:var(--{kind})"></span>{NAMES[kind]}</li>' for kind in COLOURS
                     if kind != OTHER)
    sections = ''.join(_section(way, scale) for way in ways)
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title><meta name="viewport" '
            f'content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark"><style>'
            f'{colour_rules(":root")}{_STYLE}</style></head><body><main><h1>{_TITLE}</h1>'
            f'<p>{escape(subject)}. Arrows are as thick as the bytes that one training '
            f'step moves, in every picture alike.</p><ul class="legend">{legend}</ul><div class="ways">{sections}</div>'
            f'<p class="soft" style="margin-top:20px">{"<br>".join(map(escape, notes))}</p></main></body></html>')


def thickest(ways: Iterable[WayReport]) -> float:
    """The bytes of the largest flow of all ways: the scale that their pictures share."""
    return max((row.measured for way in ways for row in way.pairs), default=1)


def text_report(way: WayReport) -> list[str]:
    """The lines of one way."""
    lines = [way.title, f'  {way.text}']
    for caption, head, rows in _tables(way):
        lines += ['', f'  {caption}', *_aligned([head, *rows])]
    return [*lines, '', *(f'  {line}' for line in _remarks(way)), '']


def _section(way: WayReport, scale: float) -> str:
    law = 'every measured sum is as planned and as predicted' if way.equal else \
        'some measured bytes are not as planned: see the tables'
    bar = ''.join(f'<i style="width:{100 * way.shares[name]:.1f}%;background:var(--{colour})" title="{name} '
                  f'{way.shares[name]:.0%}"></i>' for name, colour in _SHARE_COLOURS.items())
    tables = ''.join(_html_table(*table) for table in _tables(way))
    return (f'<section aria-labelledby="{way.name}-head"><h2 id="{way.name}-head">{escape(way.title)}</h2>'
            f'<p class="soft">{escape(way.text)}</p>{draw(way, scale, standalone=False)}'
            f'<div class="bar" aria-hidden="true">{bar}</div><p class="verdict">{escape(way.verdict)}</p>'
            f'<p class="soft">{escape(way.network)}</p><p class="{"ok" if way.equal else "bad"}">{law}</p>'
            f'<details><summary>Bytes and devices</summary>{tables}</details></section>')


def _tables(way: WayReport) -> list[tuple[str, list[str], list[list[str]]]]:
    """(caption, head, rows) of each table; cells that begin with a digit are numbers."""
    tables = [
        ('Weights once down, gradients once up', ['', 'predicted', 'planned', 'measured'],
         [[row.what, _count(row.predicted), _count(row.planned), _count(row.measured)] for row in way.laws]),
        ('Between devices, bytes per step', ['from', 'to', 'what', 'tensors', 'planned', 'measured', 'Gbit/s'],
         [[full_name(row.source), full_name(row.target), NAMES[row.kind], _count(row.tensors), _count(row.planned),
           _count(row.measured), f'{row.gbits:.2f}' if row.gbits else ''] for row in way.pairs]),
        ('Devices', ['', 'does', 'operations', 'parameters', 'variables', 'of it slots', 'averages', 'activations in',
                     'out'],
         [[full_name(row.device), ', '.join(row.towers), _count(row.operations), _count(row.parameters),
           _count(sum(row.bytes.values())), _count(row.bytes.get('slots', 0)), _count(row.bytes.get('averages', 0)),
           _count(row.activations_in), _count(row.activations_out)] for row in way.devices])]
    if way.wire:
        tables.append(('Over the network, bytes per step', ['', 'receives', 'sends'],
                       [[task, _count(ends['in']), _count(ends['out'])] for task, ends in way.wire.items()]))
    return tables


def _remarks(way: WayReport) -> list[str]:
    """What is said in words below the tables of the screen."""
    mean = sum(way.balance.values()) / len(way.balance)
    lines = [f'{task_name(device)} holds {size_text(size)} of variables, {size / mean:.2f} of the mean'
             for device, size in way.balance.items()]
    lines += [f'only on {full_name(entry["device"])}: {entry["name"]}, {entry["why"]}' for entry in way.local]
    lines += [f'{entry["operation"]} asked for {entry["asked"]} and ran on {entry["ran"]}' for entry in way.moved[:10]]
    if len(way.moved) > 10:
        lines.append(f'and {len(way.moved) - 10} more ran elsewhere than they asked: see the JSON')
    if not way.moved:
        lines.append('no operation ran elsewhere than it asked')
    if way.unknown:
        lines.append(f'{len(way.unknown)} tensors show their size only at run time, the first is {way.unknown[0]}')
    lines.append('every measured sum is as planned and as predicted' if way.equal else
                 'NOT EQUAL: some measured bytes are not as planned or predicted')
    return [*lines, f'a step takes {way.seconds:.3g} s; {way.verdict}', way.network]


def _count(value: int) -> str:
    return f'{value:,}' if value else ''


def _numeric(text: str) -> bool:
    return text[:1].isdigit() and text[-1:].isdigit()


def _html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = [any(_numeric(row[column]) for row in rows) for column in range(len(head))]

    def cells(tag: str, values: Sequence[str]) -> str:
        return ''.join(f'<{tag}{" class=n" if side else ""}>{escape(value)}</{tag}>'
                       for value, side in zip(values, right, strict=True))

    body = ''.join(f'<tr>{cells("td", row)}</tr>' for row in rows)
    return (f'<div class="scroll"><table><caption>{escape(caption)}</caption><thead><tr>{cells("th", head)}</tr>'
            f'</thead><tbody>{body}</tbody></table></div>')


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = [any(_numeric(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]
    return ['    ' + '  '.join(f'{cell:>{width}}' if side else f'{cell:<{width}}'
                               for cell, width, side in zip(row, widths, right, strict=True)).rstrip() for row in rows]
