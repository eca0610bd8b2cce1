"""Any image file to an RGB JPEG that TensorFlow decodes, in several processes. No TensorFlow here.

A file's type is read from its content, never from its name. A three-channel JPEG, upright and whole,
stays as it is, byte for byte, after being decoded to see that it is whole (jpeg_scans). Everything else becomes an
RGB JPEG without chroma subsampling: the first frame of an animation, CMYK by the plain formula that
TensorFlow uses too (colour profiles are not applied), transparency on white, 16 bits scaled to 8, and
an image that its EXIF orientation shows turned is turned, because tf.io.decode_jpeg ignores EXIF.

`as_2016` is for ImageNet, whose records are to be those of 2016 to the byte: every JPEG of one or three channels stays
as it is, grey, turned or lacking a part, if it can be decoded. One file of it is a PNG and 22 are CMYK: those are given
back as they are with their kind, for TensorFlow to make a JPEG of, as it did then.
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
import stat
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageFile

from inception_mg.data.archives import Member, read_member
from inception_mg.data.jpeg_scans import read_scans
from inception_mg.data.kinds import HEAD, UNKNOWN, kind_of
from inception_mg.errors import UserError

# Only formats of pictures: Pillow would start Ghostscript for an EPS file.
_FORMATS = ('JPEG', 'PNG', 'GIF', 'BMP', 'WEBP', 'TIFF', 'PPM', 'JPEG2000', 'ICO', 'AVIF')
_MAX_SIDE = 65500  # Pixels; libjpeg's limit. The limit of their number is Pillow's, as much as TensorFlow decodes.
_MAX_BYTES = 2**30  # Of a file.
_MAX_SCANS = 1000  # Of a JPEG; usual are 1 to 20. Each scan goes over the whole picture, however few bytes it has.
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
    """The file is no readable image; the message is the reason, on one line. kind: what it is, for a count."""

    def __init__(self, reason: str, kind: str):
        super().__init__(reason)
        self.kind = kind


class Jpeg(NamedTuple):
    """An RGB JPEG and its size in pixels."""

    data: bytes
    height: int
    width: int


class Converted(NamedTuple):
    """What became of one file: a JPEG, or None, the reason, and for counting the kind, such as 'HEIC'.

    With as_2016 the "JPEG" may be a PNG or a CMYK JPEG: then the kind says 'PNG' or 'CMYK'.
    """

    jpeg: Jpeg | None
    reason: str = ''
    kind: str = ''


def to_jpeg(data: bytes, quality: int, as_2016: bool = False) -> Jpeg:
    """Returns the content of an image file as an RGB JPEG; raises BadImage if it is none, or not whole."""
    kind = kind_of(data)
    if not data:
        raise BadImage('the file is empty', kind)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Odd metadata, and sizes that are large but allowed.
        try:
            return _to_jpeg(data, quality, as_2016)
        except BadImage:
            raise
        except Image.UnidentifiedImageError:
            raise BadImage(*_not_read(kind, data)) from None
        except Exception as error:  # noqa: BLE001 (Pillow's decoders raise nearly every type on bad bytes.)
            raise BadImage(' '.join(f'{type(error).__name__}: {error}'.split()), 'too large' if isinstance(
                error, (Image.DecompressionBombError, MemoryError)) else f'damaged {kind}') from None


def convert_file(path: str | Member, quality: int, as_2016: bool = False) -> Converted:
    """Reads and converts one file; whatever is wrong with it is returned, not raised."""
    try:
        if isinstance(path, Member):
            return _convert_member(path, quality, as_2016)
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # Opening a named pipe would wait for ever.
            return Converted(None, 'not a regular file', 'not a file')
        with open(path, 'rb') as file:
            head = file.read(HEAD)
            if status.st_size > _MAX_BYTES:
                return Converted(None, f'{status.st_size} bytes ({kind_of(head)}): a file of more than {_MAX_BYTES} is '
                                 'not read', 'too large')
            return _converted(head + file.read(_MAX_BYTES), quality, as_2016)
    except BadImage as error:
        return Converted(None, str(error), error.kind)
    except OSError as error:
        if os.path.islink(path) and not os.path.exists(path):
            return Converted(None, 'a link to nothing or to itself', 'link')
        return Converted(None, error.strerror or str(error), 'unreadable file')
    except (ValueError, MemoryError) as error:  # A path that no system can have; a file too large for this one.
        return Converted(None, f'{type(error).__name__}: {error}', 'unreadable file')


def _convert_member(member: Member, quality: int, as_2016: bool) -> Converted:
    if member.size > _MAX_BYTES:
        return Converted(None, f'{member.size} bytes: a file of more than {_MAX_BYTES} is not read', 'too large')
    try:
        return _converted(read_member(member), quality, as_2016)
    except EOFError as error:
        return Converted(None, str(error), 'unreadable file')


def _converted(data: bytes, quality: int, as_2016: bool) -> Converted:
    jpeg = to_jpeg(data, quality, as_2016)
    if not as_2016 or jpeg.data is not data:
        return Converted(jpeg)
    with Image.open(io.BytesIO(data)) as image:
        return Converted(jpeg, kind='CMYK' if image.mode == 'CMYK' else 'PNG' if image.format == 'PNG' else '')


def count_kinds(kinds: Iterable[str]) -> str:
    """Returns how many there are of each kind, the most frequent first: such as '9 HEIC, 2 damaged JPEG'."""
    return ', '.join(f'{number} {kind}' for kind, number in collections.Counter(kinds).most_common())


def convert_files(paths: Sequence[str | Member], quality: int, processes: int, as_2016: bool = False
                  ) -> Iterator[Converted]:
    """Yields the outcome of each file in the order of `paths`, whatever the number of processes.

    At most 16 files per process are in memory. Raises UserError if a process dies.
    """
    convert = functools.partial(convert_file, quality=quality, as_2016=as_2016)
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


def _in_order(pool, convert, paths: Sequence[str | Member], pending: int) -> Iterator[Converted]:
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


def _to_jpeg(data: bytes, quality: int, as_2016: bool) -> Jpeg:
    image = Image.open(io.BytesIO(data), formats=_formats())
    if max(image.size) > _MAX_SIDE:
        raise BadImage(f'{image.width} x {image.height} pixels: a record holds at most {_MAX_SIDE} on a side, shrink '
                       'it', 'too large')
    if image.format in ('JPEG', 'MPO') and not as_2016:
        image = _load_jpeg(image, data)
    else:
        _check_end(image, data)
        image.load()
    if as_2016 and (image.format == 'PNG' or image.format == 'JPEG' and image.mode == 'CMYK'):
        return Jpeg(data, image.height, image.width)
    turn = None if as_2016 else _UPRIGHT.get(_orientation(image))
    if (image.mode == 'RGB' or as_2016 and image.mode == 'L') and turn is None and _is_clean_jpeg(image, data):
        return Jpeg(data, image.height, image.width)
    rgb = _to_rgb(image)
    if turn is not None:
        rgb = rgb.transpose(turn)
    buffer = io.BytesIO()
    rgb.save(buffer, 'JPEG', quality=quality, subsampling=0)
    return Jpeg(buffer.getvalue(), rgb.height, rgb.width)


def _load_jpeg(image: ImageFile.ImageFile, data: bytes) -> ImageFile.ImageFile:
    """Decodes a JPEG; BadImage where a part of the picture is missing, whatever the end of the file says."""
    scans = read_scans(data)
    if scans.scans > _MAX_SCANS:
        raise BadImage(f'a JPEG of {scans.scans} scans, a picture has a few: it would take very long', 'damaged JPEG')
    image.load()
    probed = Image.open(io.BytesIO(scans.probed), formats=('JPEG',))
    if not scans.all_sent or ImageChops.difference(probed, image).getbbox(alpha_only=False):
        raise BadImage('not whole: a part of the picture is missing, decoders make it grey or blurred', 'damaged JPEG')
    return image


def _check_end(image: ImageFile.ImageFile, data: bytes) -> None:
    """Finds files whose later part was never written, where their decoders do not notice."""
    if image.format == 'PNG':
        Image.open(io.BytesIO(data), formats=('PNG',)).verify()  # All checksums; decoding stops at the last pixel.
    elif image.format in ('WEBP', 'AVIF') and not any(data[-256:]):
        raise BadImage('not whole: it ends in zeros', f'damaged {kind_of(data)}')


def _not_read(kind: str, data: bytes) -> tuple[str, str]:
    """Returns the reason why a file is not taken for an image, and its kind."""
    starts = f'it starts with {data[:12]!r}'
    if kind == UNKNOWN:
        return f'not an image ({starts})', 'unknown'
    if kind.upper() in _formats():
        return f'a damaged {kind} ({starts})', f'damaged {kind}'
    return f'not an image that is read, but {kind} ({starts}): if it is a picture, save it as JPEG or PNG', kind


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
        raise BadImage(f'32-bit pixels (mode {image.mode}) have no known range: save it with 8 bits',
                       f'{image.format} of 32 bits')
    if image.mode == 'CMYK' and image.format in ('JPEG', 'MPO') and 'adobe' not in image.info:
        image = ImageChops.invert(image)  # Pillow takes every CMYK JPEG to be inverted, as Adobe's are.
    if image.has_transparency_data:
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        return Image.alpha_composite(white, image).convert('RGB')
    return image.convert('RGB')
