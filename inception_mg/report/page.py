"""The report for people: one HTML page without anything from outside, and the same as text for a screen."""

import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from inception_mg.placement import machine_of, task_name
from inception_mg.report.labels import NAMES, full_name
from inception_mg.report.picture import COLOURS, colour_rules, draw
from inception_mg.report.plan import OTHER
from inception_mg.report.summary import WayReport, busiest
from inception_mg.training.timeline import size_text

_TITLE = 'What sits where, and what crosses which wire'
_SUBTITLE = 'Ways of running one training step. Machines are boxes, devices sit in them, and arrows are as thick as ' \
            'the bytes that a step moves, in every picture alike.'
_STYLE = '''
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);line-height:1.5;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1440px;margin:0 auto;padding:28px 20px 48px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 8px}h2{font-size:1.08rem;line-height:1.3;margin:0 0 3px}
p{margin:0 0 10px;max-width:80ch}.soft{color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:6px 22px;padding:0;margin:16px 0 20px;list-style:none}
.legend span{display:inline-block;width:28px;height:10px;border-radius:5px;margin-right:8px}
.ways{display:grid;gap:20px;grid-template-columns:repeat(6,1fr)}.ways section{grid-column:span 6}
@media(min-width:820px){.ways section{grid-column:span 3}.overview table td:first-child{white-space:nowrap}}
@media(min-width:1240px){.ways section{grid-column:span 2}.ways section.cluster{grid-column:span 3}}
section{display:flex;flex-direction:column;border:1px solid var(--edge);border-radius:14px;padding:18px;min-width:0}
section svg{display:block;width:100%;height:auto;margin:10px auto}section p{font-size:.88rem;margin:0 0 6px}
.figure{flex:1;display:flex;align-items:center}.verdict{font-weight:600;margin-top:10px}
.figures{margin:26px 0 18px}details{padding:5px 0}summary{cursor:pointer;font-weight:600}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;margin:8px 0 16px}caption{text-align:left;font-weight:600;
padding:4px 0}th,td{padding:4px 26px 4px 0;white-space:nowrap;text-align:left;
border-bottom:1px solid var(--edge);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.overview table{font-size:.92rem;margin:0 0 24px;width:100%}
.overview td:first-child{font-weight:600;white-space:normal;min-width:9em}
.remarks{font-size:.9rem;padding-left:1.2em;margin:6px 0 12px;overflow-wrap:anywhere}
.bar{display:flex;height:10px;border-radius:5px;overflow:hidden;background:var(--edge)}.bar i{display:block}
.ok::before,.bad::before{font-weight:700;content:"\\2713  ";color:var(--activations)}
.bad::before{content:"\\2717  ";color:var(--gradients)}
'''
_SHARE_COLOURS = {'compute': 'activations', 'wire': 'weights', 'input': 'input', 'waiting': 'other'}


class _Table(NamedTuple):
    caption: str
    head: list[str]
    rows: list[list[str]]


def html_page(ways: Sequence[WayReport], subject: str, notes: Sequence[str]) -> str:
    """Returns the page. subject: the model in words. notes: what the reader should know of how it was measured."""
    scale = thickest(ways)
    legend = ''.join(f'<li><span style="background:var(--{kind})"></span>{NAMES[kind]}</li>' for kind in COLOURS
                     if kind != OTHER)
    sections, figures = ''.join(_section(way, scale) for way in ways), ''.join(map(_figures, ways))
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{_TITLE}</title><meta name="viewport" '
            f'content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark"><style>'
            f'{colour_rules(":root")}{_STYLE}</style></head><body><main><h1>{_TITLE}</h1>'
            f'<p>{_SUBTITLE}</p><p class="soft">{escape(subject)}</p><ul class="legend">{legend}</ul>'
            f'<div class="overview">{_html_table(_overview(ways)) if len(ways) > 1 else ""}</div>'
            f'<div class="ways">{sections}</div><div class="figures"><h2>Bytes and devices</h2>{figures}</div>'
            f'<p class="soft">{"<br>".join(map(escape, notes))}</p></main></body></html>')


def thickest(ways: Iterable[WayReport]) -> float:
    """The bytes of the largest flow of all ways: the scale that their pictures share."""
    return max((row.measured for way in ways for row in way.pairs), default=1)


def text_report(way: WayReport) -> list[str]:
    """The lines of one way."""
    lines = [way.title, f'  {way.text}']
    for table in _tables(way):
        lines += ['', *_text_table(table)]
    return [*lines, '', *(f'  {line}' for line in [*_remarks(way), _equality(way), *_verdicts(way)]), '']


def text_overview(ways: Sequence[WayReport]) -> list[str]:
    """The lines that compare several ways."""
    return [*_text_table(_overview(ways)), '']


def _overview(ways: Sequence[WayReport]) -> _Table:
    rows = []
    for way in ways:
        inside = sum(row.measured for row in way.pairs if machine_of(row.source) == machine_of(row.target))
        task, most = busiest(way.wire)
        homes = ', '.join(dict.fromkeys(map(task_name, way.balance)))
        rows.append([re.split('[:,]', way.title)[0], homes, str(len(way.clients)), str(way.towers), size_text(inside),
                     size_text(sum(ends['in'] for ends in way.wire.values())) if way.wire else 'nothing',
                     f'{size_text(most)} at {task}' if task else '', way.bound, 'yes' if way.equal else 'NO'])
    return _Table('What crosses in a step of every worker', [
        '', 'variables on', 'clients', 'towers', 'inside machines', 'over the network', 'busiest wire, one way',
        'bound here by', 'as predicted'], rows)


def _section(way: WayReport, scale: float) -> str:
    bar = ''.join(f'<i style="width:{100 * way.shares[name]:.1f}%;background:var(--{colour})" title="{name} '
                  f'{way.shares[name]:.0%}"></i>' for name, colour in _SHARE_COLOURS.items())
    verdict, network = _verdicts(way)
    return (f'<section{" class=cluster" * bool(way.wire)} aria-labelledby="{way.name}-head">'
            f'<h2 id="{way.name}-head">{escape(way.title)}</h2><p class="soft">{escape(way.text)}</p>'
            f'<div class="figure">{draw(way, scale, standalone=False)}</div>'
            f'<div class="bar" aria-hidden="true">{bar}</div><p class="verdict">{escape(verdict)}</p>'
            f'<p class="soft">{escape(network)}</p><p class="{"ok" if way.equal else "bad"}">{_equality(way)}</p>'
            f'</section>')


def _figures(way: WayReport) -> str:
    """What a reader may unfold below the pictures."""
    remarks = ''.join(f'<li>{escape(line)}</li>' for line in _remarks(way))
    return (f'<details><summary>{escape(way.title)}</summary><ul class="remarks">{remarks}</ul>'
            f'{"".join(map(_html_table, _tables(way)))}</details>')


def _tables(way: WayReport) -> list[_Table]:
    tables = [
        _Table('Weights once down, gradients once up', ['', 'predicted', 'planned', 'measured'],
               [[row.what, _count(row.predicted), _count(row.planned), _count(row.measured)] for row in way.expected]),
        _Table('Between devices, bytes per step', ['from', 'to', 'what', 'tensors', 'planned', 'measured', 'Gbit/s'],
               [[full_name(row.source), full_name(row.target), NAMES[row.kind], _count(row.tensors),
                 _count(row.planned), _count(row.measured), f'{row.gbits:.2f}' if row.gbits else '']
                for row in way.pairs]),
        _Table('Devices, bytes', ['', 'does', 'operations', 'parameters', 'weights', 'slots', 'averages',
                                  'all variables', 'activations in', 'out'],
               [[full_name(row.device), ', '.join(row.towers), _count(row.operations), _count(row.parameters),
                 *(_count(row.bytes.get(role, 0)) for role in ('weights', 'slots', 'averages')),
                 _count(sum(row.bytes.values())), _count(row.activations_in), _count(row.activations_out)]
                for row in way.devices])]
    if way.wire:
        tables.append(_Table('Over the network, bytes per step', ['', 'pulls', 'pushes'],
                             [[task, _count(ends['in']), _count(ends['out'])] for task, ends in way.wire.items()]))
    return list(map(_without_empty_columns, tables))


def _remarks(way: WayReport) -> list[str]:
    """What no table holds: balance, what is local, what moved, what only shows at run time."""
    mean = sum(way.balance.values()) / len(way.balance)
    lines = [f'{task_name(device)} holds {size_text(size)} of variables'
             + (f', {size / mean:.3f} of the mean' if len(way.balance) > 1 else '')
             for device, size in way.balance.items()]
    lines += [f'only on {full_name(entry["device"])}: {entry["name"]}, {entry["why"]}' for entry in way.local]
    lines += [f'{entry["operation"]} asked for {entry["asked"]} and ran on {entry["ran"]}' for entry in way.moved[:10]]
    if len(way.moved) > 10:
        lines.append(f'and {len(way.moved) - 10} more ran elsewhere than they asked: see the JSON')
    if not way.moved:
        lines.append('no operation ran elsewhere than it asked')
    if way.unknown:
        lines.append(f'{len(way.unknown)} tensors show their size only at run time, the first is {way.unknown[0]}')
    return lines


def _equality(way: WayReport) -> str:
    return 'every measured sum is as planned and as predicted' if way.equal else \
        'NOT EQUAL: some measured bytes are not as planned or predicted, see the tables'


def _verdicts(way: WayReport) -> tuple[str, str]:
    return f'a step takes {way.seconds:.3g} s; {way.verdict}', way.network


def _count(value: int) -> str:
    return f'{value:,}' if value else ''


def _without_empty_columns(table: _Table) -> _Table:
    full = [any(row[column] for row in table.rows) for column in range(len(table.head))]
    head, *rows = (list(itertools.compress(cells, full)) for cells in (table.head, *table.rows))
    return _Table(table.caption, head, rows)


def _right(table: _Table) -> list[bool]:
    """Which columns hold numbers or sizes."""
    return [any(re.fullmatch(r'[\d.,]+( [kMG]?B)?', row[column]) for row in table.rows)
            for column in range(len(table.head))]


def _html_table(table: _Table) -> str:
    right = _right(table)

    def cells(tag: str, values: Sequence[str]) -> str:
        return ''.join(f'<{tag}{" class=n" if side else ""}>{escape(value)}</{tag}>'
                       for value, side in zip(values, right, strict=True))

    body = ''.join(f'<tr>{cells("td", row)}</tr>' for row in table.rows)
    return (f'<div class="scroll"><table><caption>{escape(table.caption)}</caption><thead><tr>'
            f'{cells("th", table.head)}</tr></thead><tbody>{body}</tbody></table></div>')


def _text_table(table: _Table) -> list[str]:
    """Columns of equal width, numbers to the right."""
    rows, right = [table.head, *table.rows], _right(table)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.head))]
    return [f'  {table.caption}', *('    ' + '  '.join(
        f'{cell:>{width}}' if side else f'{cell:<{width}}'
        for cell, width, side in zip(row, widths, right, strict=True)).rstrip() for row in rows)]
