"""Parts of shards: equal, whole, and few of them shared."""

import random

import pytest

from inception_mg.data.parts import TO_THE_END, dealt_in_turn, part_size, pieces


@pytest.mark.parametrize('seed', range(20))
def test_parts_are_equal_and_cover_all_once(seed):
    draw = random.Random(seed)
    counts = [draw.randrange(30) for _ in range(draw.randint(1, 12))]
    parts = draw.randint(1, max(1, min(16, sum(counts))))
    paths = [f's{shard}' for shard in range(len(counts))]
    seen, of_shard = [], {path: count for path, count in zip(paths, counts, strict=True)}
    for part in range(parts):
        mine = [(path, record) for path, first, count in pieces(paths, counts, part, parts)
                for record in range(first, of_shard[path] if count == TO_THE_END else first + count)]
        assert len(mine) == part_size(sum(counts), part, parts)
        shared = [piece for piece in pieces(paths, counts, part, parts) if piece.first or piece.count != TO_THE_END]
        assert len(shared) <= 2
        seen += mine
    assert seen == [(path, record) for path in paths for record in range(of_shard[path])]
    assert max(part_size(sum(counts), part, parts) for part in range(parts)) <= sum(counts) // parts + 1


def test_four_shards_of_ten_on_three_readers():
    paths = ['a', 'b', 'c', 'd']
    assert [pieces(paths, dealt_in_turn(42, 4), part, 3) for part in range(3)] == [
        [('a', 0, -1), ('b', 0, 3)], [('b', 3, -1), ('c', 0, 6)], [('c', 6, -1), ('d', 0, -1)]]
