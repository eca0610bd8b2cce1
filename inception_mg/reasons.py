"""Why TensorFlow failed, in one line out of the many of its errors. Standard library only."""

import re

LONGEST = 300  # Characters of a reason.
# What a line says -> how a user would say it. In this order: a full disk is often told as a failed write, too.
_KNOWN = (
    (r'no space left on device', 'the disk is full'),
    (r'disk quota exceeded', 'the disk quota is used up'),
    (r'read-only file system', 'the file system is read-only'),
    (r'permission ?denied|operation not permitted', 'permission denied'),
    (r'too many open files', 'too many open files (ulimit -n)'),
    (r'file too large', 'the file is too large for its file system, or for ulimit -f'),
    (r'input/output error|stale file handle|transport endpoint', 'the disk or its network fails'),
    (r'\boom\b|out of memory|cannot allocate memory|bad_alloc|failed to allocate', 'out of memory'),
    (r'data loss|data_?loss|checksum|corrupted|truncated|not an sstable|bad magic', 'the file is damaged'),
    (r'no such file|file does not exist|failed to find any matching|not found:|\bnot_?found\b', 'not found'),
    (r'connection (?:refused|reset)|socket closed|failed to connect|unavailable|heartbeat|worker .* died',
     'the connection to another task is lost'),
    (r'deadline ?exceeded', 'another task did not answer in time'))
_NOISE = re.compile(
    r'graph execution error:?$|detected at node|defined at \(most recent call last\)|original stack trace|node:|'
    r'errors? may have originated|input source operations|function call stack|stack trace|traceback|'
    r'\d+ root error\(s\) found|\d+ (?:successful|derived) (?:operations|errors)|hint:|file "|additional grpc|^\W*$',
    re.IGNORECASE)


def reason_of(error: BaseException) -> str:
    """Returns the reason of an error in one line: what is known to be behind it, and the line that tells.

    error: any; those of a TensorFlow session begin with 'Graph execution error:' and hold a stack trace. Never empty.
    """
    text = getattr(error, 'strerror', None) or getattr(error, 'message', None) or str(error)
    lines = [re.sub(r'^\(\d+\)\s*', '', ' '.join(line.split())) for line in str(text).splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    for pattern, reason in _KNOWN:
        for line in lines:
            if re.search(pattern, line, re.IGNORECASE):
                return reason if line.lower() == reason else f'{reason} ({_short(line)})'
    return _short(lines[0]) if lines else type(error).__name__


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f'{line[:LONGEST - 4]} ...'
