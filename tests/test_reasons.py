"""The one line of an error that tells."""

import pytest

from inception_mg.reasons import LONGEST, reason_of

SESSION = """Graph execution error:

Detected at node 'save/SaveV2' defined at (most recent call last):
    File "scripts/train.py", line 30, in <module>
Node: 'save/SaveV2'
{}
\t [[{{{{node save/SaveV2}}}}]]

Original stack trace for 'save/SaveV2':
"""


@pytest.mark.parametrize('line, reason', [
    ('/run/model.ckpt-6.data-00000-of-00001; No space left on device', 'the disk is full ('),
    ('/run/x; Permission denied', 'permission denied ('),
    ('/run/x; Disk quota exceeded', 'the disk quota is used up ('),
    ('/run/x; Read-only file system', 'the file system is read-only ('),
    ('/run/x; No such file or directory', 'not found ('),
    ('OOM when allocating tensor with shape[8,3]', 'out of memory ('),
    ('Checksum does not match: stored 1 vs. calculated 2', 'the file is damaged ('),
    ('2 root error(s) found.\n  (0) UNAVAILABLE: failed to connect to all addresses', 'the connection to another task'),
    ('assertion failed: [x] [y]', 'assertion failed: [x] [y]')])
def test_the_line_that_tells(line, reason):
    assert reason_of(ValueError(SESSION.format(line))).startswith(reason)


def test_odd_errors():
    assert reason_of(ValueError()) == 'ValueError'
    assert reason_of(ValueError('Graph execution error:\n\n')) == 'ValueError'
    assert reason_of(OSError(28, 'No space left on device')).startswith('the disk is full')
    assert len(reason_of(ValueError('x' * 5000))) <= LONGEST
    assert '\n' not in reason_of(ValueError('\n a\tb \nc'))
