"""Any image file to an RGB JPEG that TensorFlow decodes, in several processes. No TensorFlow here.

A file's type is read from its content, never from its name. A three-channel JPEG, upright and whole,
stays as it is, byte for byte, after being decoded once to see that it is whole. Everything else becomes an
RGB JPEG without chroma subsampling: the first frame of an animation, CMYK by the plain formula that
TensorFlow uses too (colour profiles are not applied), transparency on white, 16 bits scaled to 8, and
an image that its EXIF orientation shows turned is turned, because tf.io.decode_jpeg ignores EXIF.
"""

import collections
import concurrent.futures
import functools
import io
import itertools
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageFile

from inception_mg.errors import UserError

# Only formats of pictures: Pillow would start Ghostscript for an EPS file.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF', 'PPM', 'JPEG2000', 'ICO', 'AVIF')
_ORIENTATION = 0x0112  # The EXIF tag; value -> what turns the picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PENDING_PER_PROCESS = 16


class BadImage(Exception):
    """The file is no readable image; the message is the reason, on one line."""


class Jpeg(NamedTuple):
    """An RGB JPEG and its size in pixels."""

    data: bytes
    height: int
    width: int


class Converted(NamedTuple):
    """What became of one file: a JPEG, or None and the reason."""

    jpeg: Jpeg | None
    reason: str


def to_jpeg(data: bytes, quality: int) -> Jpeg:
    """Returns the content of an image file as an RGB JPEG; raises BadImage if it is none, or not whole."""
    if not data:
        raise BadImage('the file is empty')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Odd metadata, and sizes that are large but allowed.
        try:
            return _to_jpeg(data, quality)
        except BadImage:
            raise
        except Image.UnidentifiedImageError:
            raise BadImage(f'not an image (it starts with {data[:12]!r})') from None
        except Exception as error:  # noqa: BLE001 (Pillow's decoders raise nearly every type on bad bytes.)
            raise BadImage(' '.join(f'{type(error).__name__}: {error}'.split())) from None


def convert_file(path: str, quality: int) -> Converted:
    """Reads and converts one file; whatever is wrong with it is returned, not raised."""
    try:
        if not os.path.isfile(path):  # Opening a named pipe would wait for ever.
            return Converted(None, 'a link to nothing' if os.path.islink(path) else 'not a regular file')
        with open(path, 'rb') as file:
            return Converted(to_jpeg(file.read(), quality), '')
    except BadImage as error:
        return Converted(None, str(error))
    except OSError as error:
        return Converted(None, error.strerror or str(error))


def convert_files(paths: Sequence[str], quality: int, processes: int) -> Iterator[Converted]:
    """Yields the outcome of each file in the order of `paths`, whatever the number of processes.

    At most 16 files per process are in memory. Raises UserError if a process dies.
    """
    convert = functools.partial(convert_file, quality=quality)
    processes = min(processes, len(paths))
    if processes <= 1:
        yield from map(convert, paths)
        return
    # Spawned, not forked: the parent holds TensorFlow's threads, which a fork does not survive.
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context('spawn'), initializer=_start_process)
    try:
        yield from _in_order(pool, convert, paths, processes * _PENDING_PER_PROCESS)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(pool, convert, paths: Sequence[str], pending: int) -> Iterator[Converted]:
    rest = iter(paths)
    window = collections.deque()
    for path in paths:
        try:
            window.extend((each, pool.submit(convert, each))
                          for each in itertools.islice(rest, pending - len(window)))
            yield window.popleft()[1].result()
        except concurrent.futures.process.BrokenProcessPool:
            raise UserError(f'a converting process died at or after {path} (killed, or out of memory?): '
                            'try a smaller --num_threads') from None


def _start_process() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process().sentinel

    def end_with_parent():
        multiprocessing.connection.wait([parent])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _to_jpeg(data: bytes, quality: int) -> Jpeg:
    image = Image.open(io.BytesIO(data), formats=_formats())
    image.load()
    turn = _UPRIGHT.get(_orientation(image))
    if image.mode == 'RGB' and turn is None and _is_clean_jpeg(image, data):
        return Jpeg(data, image.height, image.width)
    rgb = _to_rgb(image)
    if turn is not None:
        rgb = rgb.transpose(turn)
    buffer = io.BytesIO()
    rgb.save(buffer, 'JPEG', quality=quality, subsampling=0)
    return Jpeg(buffer.getvalue(), rgb.height, rgb.width)


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)  # Some are optional in Pillow.


def _orientation(image: ImageFile.ImageFile) -> int:
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 (Damaged metadata says nothing about the pixels.)
        return 1


def _is_clean_jpeg(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Whether the last scan runs to an end mark without a stray marker.

    Pillow stops reading at the last row of pixels; TensorFlow reads on to the end mark and refuses the image
    if there is none or if something else comes first. MPO is a JPEG with further pictures behind it.
    """
    scan = data[data.rfind(b'\xff\xda') + 2:].rstrip(b'\0\r\n')
    return (image.format in ('JPEG', 'MPO') and scan.endswith(b'\xff\xd9')
            and not re.search(rb'\xff[^\x00\xd0-\xd9\xff]', scan))


def _to_rgb(image: ImageFile.ImageFile) -> Image.Image:
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM')):
        image_v = (np.asarray(image).astype(np.int64) + 128) // 257  # 0..65535 to 0..255, rounded
        return Image.fromarray(image_v.astype(np.uint8)).convert('RGB')
    if image.mode in ('I', 'F'):
        raise BadImage(f'32-bit pixels (mode {image.mode}) have no known range: save it with 8 bits')
    if image.mode == 'CMYK' and image.format in ('JPEG', 'MPO') and 'adobe' not in image.info:
        image = ImageChops.invert(image)  # Pillow takes every CMYK JPEG to be inverted, as Adobe's are.
    if image.has_transparency_data:
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        return Image.alpha_composite(white, image).convert('RGB')
    return image.convert('RGB')
