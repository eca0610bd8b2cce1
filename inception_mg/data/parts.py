"""Deals the records of shards to readers: equal parts, whatever the numbers. Standard library only."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

TO_THE_END = -1


class Piece(NamedTuple):
    """What a reader takes of one shard: `count` records from record `first` on, or all from there on (TO_THE_END)."""

    path: str
    first: int
    count: int


def dealt_in_turn(records: int, shards: int) -> list[int]:
    """Records of each shard where they were dealt in turn, as build_image_data.py does."""
    return [records // shards + (shard < records % shards) for shard in range(shards)]


def part_size(records: int, part: int, parts: int) -> int:
    """Records of one of so many equal parts; they differ by one at most."""
    return records * (part + 1) // parts - records * part // parts


def pieces(paths: Sequence[str], counts: Sequence[int], part: int, parts: int) -> list[Piece]:
    """The part-th of so many equal parts, as pieces of shards in their order.

    counts: records of each shard. All shards are one row of records that is cut into parts, so a reader shares two
    shards at most, its first and its last, and reads all others whole. A piece that ends with its shard has no count:
    every record is in one part even where the counts are wrong.
    """
    total = sum(counts)
    begin, end = total * part // parts, total * (part + 1) // parts
    found = []
    for path, last, count in zip(paths, itertools.accumulate(counts), counts, strict=True):
        start = max(begin - (last - count), 0)
        stop = min(end - (last - count), count)
        if start < stop:
            found.append(Piece(path, start, TO_THE_END if stop == count else stop - start))
    return found
