"""Whether a JPEG holds all of its picture, also where an end mark was put behind what is left of it.

Decoders fill what is missing with grey and say nothing. But they ignore bytes behind a complete scan, and do not
ignore them behind an incomplete one. So the file is decoded once more with a few bytes put at the end of every
stretch of coded data: if the picture changes, something was missing there. Standard library only.
"""

import re
from typing import NamedTuple

_MARKER = re.compile(rb'\xff+[^\x00\xff]')
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_RESTARTS = range(0xD0, 0xD8)
_START, _END, _SCAN, _INTERVAL, _TEMPORARY = 0xD8, 0xD9, 0xDA, 0xDD, 0x01
_PROBE = bytes.fromhex('5ae3914c7a25d8b6139d64f1428bce37')  # No 0xff: it would begin a marker.


class Scans(NamedTuple):
    """scans: their number. all_sent: whether each coefficient of each component was sent to its last bit.
    probed: the file up to its end mark, with bytes behind each stretch of coded data."""

    scans: int
    all_sent: bool
    probed: bytes


def read_scans(data: bytes) -> Scans:
    """Walks through the segments of a JPEG, of several pictures the first; never fails, whatever the bytes."""
    pieces, copied, position, scans = [], 0, 2, 0
    interval, frame, missing = 0, 0, {}  # {component: coefficients not yet sent whole}
    while found := _MARKER.search(data, position):
        code, position = data[found.end() - 1], found.end()
        if code == _END:
            break
        if code in _RESTARTS or code in (_START, _TEMPORARY):
            continue
        length = int.from_bytes(data[position:position + 2], 'big')
        segment, position = data[position + 2:position + length], position + max(2, length)
        if code in _FRAMES:
            frame, missing = code, {component: set(range(64)) for component in segment[6::3]}
        elif code == _INTERVAL:
            interval = int.from_bytes(segment[:2], 'big')
        elif code == _SCAN:
            scans, restart = scans + 1, _RESTARTS[0]
            _take(segment, frame in _PROGRESSIVE, missing)
            while stretch := _MARKER.search(data, position):
                pieces += data[copied:stretch.start()], _PROBE
                copied, position = stretch.start(), stretch.end()
                if data[position - 1] not in _RESTARTS:
                    position = copied
                    if interval:  # Or the next stretch is the first that is missing.
                        pieces += bytes([0xFF, restart]), _PROBE
                    break
                restart = _RESTARTS[(data[position - 1] + 1) % 8]
            else:
                break  # The file ends within coded data.
    end = found.end() if found else len(data)
    return Scans(scans, not any(missing.values()), b''.join((*pieces, data[copied:end])))


def _take(header: bytes, progressive: bool, missing: dict[int, set]) -> None:
    """Strikes out what a scan sends. header: of the scan, behind its length."""
    if not header or len(header) < 4 + 2 * header[0]:
        return
    first, last, precision = header[1 + 2 * header[0]:4 + 2 * header[0]]
    for component in header[1:1 + 2 * header[0]:2]:
        if not progressive:
            missing[component] = set()
        elif not precision & 15:
            missing.get(component, set()).difference_update(range(first, last + 1))
