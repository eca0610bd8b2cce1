"""metrics.jsonl: whole lines, whatever was cut."""

import json

import pytest

from inception_mg.errors import UserError
from inception_mg.run_dir.metrics_log import METRICS_FILE, MetricsLog


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def test_lines_are_whole_over_lives(tmp_path):
    log = MetricsLog(str(tmp_path))
    log.write(1, {'loss': 2.5})
    log.write(2, {'loss': float('nan')})
    with open(tmp_path / METRICS_FILE, 'ab') as file:
        file.write(b'{"step": 3, "lo')
    MetricsLog(str(tmp_path)).write(3, {'loss': 0.5, 'precision_at_1': 1.0})
    found = lines(tmp_path)
    assert [line['step'] for line in found] == [1, 2, 3] and [line['loss'] for line in found] == [2.5, None, 0.5]
    assert found[2]['precision_at_1'] == 1.0 and found[0]['time'] <= found[2]['time']


def test_a_file_without_any_end_of_line_begins_anew(tmp_path):
    (tmp_path / METRICS_FILE).write_bytes(b'{"st')
    MetricsLog(str(tmp_path)).write(7, {})
    assert [line['step'] for line in lines(tmp_path)] == [7]


def test_a_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(UserError, match='cannot write .*metrics.jsonl'):
        MetricsLog(str(tmp_path / 'none')).write(1, {})
