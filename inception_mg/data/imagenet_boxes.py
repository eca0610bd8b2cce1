"""Bounding boxes of ImageNet: from annotations in XML, in folders or tars, or from the CSV of the 2016 program.

The rules are those of 2016: corners are shares of the size at which the annotator saw the picture, turned and cut off
at its edges, with four decimals. A box without an area is left out, and so is one that is labelled with another synset
of the set than its picture. Some boxes of dogs are labelled with words: those are kept.
"""

import array
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Collection, Iterator

from inception_mg.data.archives import contents_of
from inception_mg.data.progress import note, progress
from inception_mg.errors import UserError

_EDGES = ('ymin', 'xmin', 'ymax', 'xmax')


class Boxes:
    """Boxes by the name of the image without its end. left_out: how many were; unread: files that could not be."""

    def __init__(self):
        self._of: dict[str, array.array] = {}  # Four numbers each: half a million lists of tuples would be 200 MB.
        self.boxes = self.left_out = 0
        self.unread: list[str] = []

    def of(self, name: str) -> list[tuple[float, float, float, float]]:
        """Returns (ymin, xmin, ymax, xmax) of each box of an image, in the order of the annotations."""
        numbers = self._of.get(name, ())
        return [tuple(numbers[first:first + 4]) for first in range(0, len(numbers), 4)]

    def add(self, name: str, ymin: float, xmin: float, ymax: float, xmax: float) -> None:
        """Mends and keeps a box, or counts it as left out."""
        (top, bottom), (left, right) = ((min(max(edge, 0.), 1.) for edge in sorted(pair))
                                        for pair in ((ymin, ymax), (xmin, xmax)))
        if not (top < bottom and left < right):  # Also where a number is none.
            self.left_out += 1
            return
        self.boxes += 1
        self._of.setdefault(name, array.array('d')).extend(round(edge, 4) for edge in (top, left, bottom, right))

    @property
    def images(self) -> int:
        return len(self._of)


def read_boxes(paths: Collection[str], synset_of: Callable[[str], str], synsets: Collection[str]) -> Boxes:
    """Reads folders and tars of XML files, and CSV files.

    synset_of: gives the synset of an image by its name without an end, '' for one that is not wanted. synsets: of the
    whole set. Raises UserError for a path that cannot be read and for a wrong line of a CSV file.
    """
    boxes, synsets = Boxes(), frozenset(synsets)
    for path in paths:
        before = boxes.boxes
        if os.path.isfile(path) and path.endswith('.csv'):
            _read_csv(path, boxes, synset_of)
        else:
            files = _below(path) if os.path.isdir(path) else contents_of(path, r'\.xml$')
            for file, data in progress(files, None, os.path.basename(path), 'annotations'):
                _read_xml(file, data, boxes, synset_of, synsets)
        note(f'boxes: {boxes.boxes - before} in {path}')
    note(f'boxes: {boxes.boxes} for {boxes.images} images; {boxes.left_out} left out: without an area inside the '
         'picture, or of another class')
    if boxes.unread:
        note(f'warning: {len(boxes.unread)} annotations cannot be read, such as {boxes.unread[0]}')
    return boxes


def _below(folder: str) -> Iterator[tuple[str, bytes]]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if name.endswith('.xml'):
                path = os.path.join(where, name)
                try:
                    with open(path, 'rb') as file:
                        yield path, file.read()
                except OSError as error:
                    raise UserError(f'cannot read {path}: {error.strerror}') from None


def _read_xml(file: str, data: bytes, boxes: Boxes, synset_of: Callable[[str], str], synsets: frozenset[str]) -> None:
    name = os.path.basename(file).removesuffix('.xml')  # Not what the file says, which at times is '%s'.
    synset = synset_of(name)
    if not synset:
        return
    try:
        root = ElementTree.fromstring(data)
        size = {side: int(float(root.findtext(f'size/{side}'))) for side in ('width', 'height')}
        for thing in root.iter('object'):
            label = thing.findtext('name')
            if label != synset and label in synsets:
                boxes.left_out += 1
                continue
            corners = {edge: int(float(thing.findtext(f'bndbox/{edge}'))) for edge in _EDGES}
            boxes.add(name, *(corners[edge] / size['height' if edge[0] == 'y' else 'width'] for edge in _EDGES))
    except (ElementTree.ParseError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        boxes.unread.append(file)


def _read_csv(path: str, boxes: Boxes, synset_of: Callable[[str], str]) -> None:
    try:
        with open(path, encoding='utf-8') as file:
            for number, line in enumerate(file, start=1):
                name, *corners = line.strip().split(',')
                if not line.strip():
                    continue
                try:
                    xmin, ymin, xmax, ymax = map(float, corners)
                except ValueError:
                    raise UserError(f'{path}, line {number}: {line.strip()[:60]!r} is no file and its xmin, ymin, '
                                    'xmax, ymax') from None
                name = os.path.splitext(os.path.basename(name))[0]
                if synset_of(name):
                    boxes.add(name, ymin, xmin, ymax, xmax)
    except OSError as error:
        raise UserError(f'cannot read {path}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise UserError(f'{path} is not UTF-8 text') from None
