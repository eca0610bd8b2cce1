"""What an experiment is asked and what it answers: claim, tables and a figure; as text, and as values for JSON."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


class Request(NamedTuple):
    """full: the long version. data_dir: records of images, '' where none are needed. scratch: a folder to work in."""

    full: bool = False
    data_dir: str = ''
    scratch: str = ''


@dataclasses.dataclass(frozen=True)
class Table:
    """rows: numbers as they were measured; `lines` rounds them. title: '' for the only table."""

    header: tuple[str, ...]
    rows: list[tuple]
    title: str = ''

    def lines(self) -> list[str]:
        """Lines of text in columns, which Markdown reads as a table too."""
        cells = [list(self.header), *([show(value) for value in row] for row in self.rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(self.header))]
        left = [all(isinstance(row[k], str) for row in self.rows) for k in range(len(self.header))]

        def line(row: Sequence[str]) -> str:
            return '| ' + ' | '.join(cell.ljust(width) if words else cell.rjust(width)
                                     for cell, width, words in zip(row, widths, left, strict=True)) + ' |'

        rule = '|' + '|'.join('-' * (width + 1) + ('-' if words else ':')
                              for width, words in zip(widths, left, strict=True)) + '|'
        return [*([self.title, ''] if self.title else []), line(cells[0]), rule, *map(line, cells[1:])]


@dataclasses.dataclass(frozen=True)
class Result:
    """claim: what was to be shown, one sentence. emulated: what was emulated, simulated or computed and how; ''
    if all was real. findings: sentences with the figures that carry the claim. figure: by matplotlib."""

    claim: str
    tables: list[Table]
    findings: list[str]
    figure: object
    emulated: str = ''

    def lines(self) -> list[str]:
        """The whole result as text."""
        found = [self.claim, *([f'Not real here: {self.emulated}.'] if self.emulated else []), '']
        for table in self.tables:
            found += [*table.lines(), '']
        return [*found, *self.findings]

    def values(self) -> dict:
        """Everything but the figure, for JSON."""
        return {'claim': self.claim, 'emulated': self.emulated, 'findings': self.findings,
                'tables': [dataclasses.asdict(table) for table in self.tables]}


def show(value) -> str:
    """A cell: numbers to three digits that count, small ones as powers of ten, None as a dash."""
    if value is None:
        return '-'
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f'{value:,}'
    if value and abs(value) < 1e-3:
        return f'{value:.1e}'
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.3g}'
