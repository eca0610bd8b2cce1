"""What a file is, by its first bytes and never by its name: for messages, and to leave what is no image unread.

Standard library only.
"""

import re
import zlib

HEAD = 4096  # Bytes that kind_of looks at.
UNKNOWN = 'an unknown kind'

_STARTS = (  # (bytes before it, pattern, kind); the first that fits counts.
    (0, rb'\xff\xd8\xff', 'JPEG'), (0, rb'\x89PNG\r\n\x1a\n', 'PNG'), (0, rb'GIF8[79]a', 'GIF'),
    (0, rb'RIFF....WEBP', 'WebP'),
    (0, rb'(II\*\0\x10\0\0\0CR|II(RO|RS|U\0)|FUJIFILMCCD-RAW)|....ftypcrx ', 'camera raw'),
    (0, rb'(II[*+]\0|MM\0[*+])', 'TIFF'), (0, rb'BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0', 'BMP'),
    (0, rb'\0\0\x01\0[\x01-\xff]\0', 'ICO'), (0, rb'P[1-7][\s#]', 'PPM'),
    (0, rb'(\0\0\0\x0cjP  |\xff\x4f\xff\x51)', 'JPEG2000'), (0, rb'(\0\0\0\x0cJXL |\xff\x0a)', 'JPEG XL'),
    (0, rb'....ftyp(avif|avis|mif1.{4}.{0,24}avif)', 'AVIF'),
    (0, rb'....ftyp(hei[cxms]|hev[cxms]|mif1|msf1)', 'HEIC'), (0, rb'....(ftyp|moov|mdat)', 'MP4 or MOV video'),
    (0, rb'8BPS', 'PSD'), (0, rb'%PDF', 'PDF'), (0, rb'(%!PS|\xc5\xd0\xd3\xc6)', 'PostScript'),
    (0, rb'gimp xcf', 'XCF'),
    (0, rb'v/1\x01', 'OpenEXR'), (0, rb'#\?RADIANCE', 'Radiance HDR'), (0, rb'qoif', 'QOI'), (0, rb'II\xbc', 'JPEG XR'),
    (128, rb'DICM', 'DICOM'), (0, rb'SIMPLE  =', 'FITS'), (0, rb'\x93NUMPY', 'NumPy'), (0, rb'\x89HDF', 'HDF5'),
    (0, rb'RIFF....AVI ', 'AVI video'), (0, rb'\x1aE\xdf\xa3', 'Matroska or WebM video'),
    (0, rb'(ID3|RIFF....WAVE)', 'sound'),
    (0, rb'PK[\x03\x05]', 'ZIP'), (0, rb'\x1f\x8b\x08', 'GZIP'), (0, rb'BZh[1-9]', 'BZIP2'), (0, rb'\xfd7zXZ\0', 'XZ'),
    (0, rb'\x28\xb5\x2f\xfd', 'Zstandard'), (0, rb'Rar!', 'RAR'), (0, rb'7z\xbc\xaf', '7-Zip'), (257, rb'ustar', 'TAR'),
    (0, rb'\0\x05\x16[\0\x07]', 'AppleDouble (macOS keeps notes in it)'),
    (0, rb'version https://git-lfs', 'Git LFS pointer'),
    (0, rb'(?i)(\xef\xbb\xbf)?\s*(<!doctype html|<html)', 'HTML'),
    (0, rb'(?is)(\xef\xbb\xbf)?\s*(<\?xml.*|<!--.*|<!doctype svg.*)?<svg', 'SVG'), (0, rb'\0{32}', 'zeros'))
_COMPILED = tuple((offset, re.compile(pattern, re.DOTALL), kind) for offset, pattern, kind in _STARTS)
_COMPRESSED = ('GZIP', 'ZLIB')  # As TensorFlow calls what it reads a shard through.
_BINARY = re.compile(rb'[\0-\x08\x0e-\x1a\x1c-\x1f]')


def compression_of(head: bytes) -> str:
    """How a shard of records is compressed that begins with these bytes: 'GZIP', 'ZLIB', or '' for not at all.

    Told by what is inside: a shard begins with the length of a record, 8 bytes, which is below 4 GB.
    """
    for name, bits in zip(_COMPRESSED, (31, 15), strict=True):
        inflate = zlib.decompressobj(bits)
        try:
            inside = inflate.decompress(head[:HEAD], 12)
        except zlib.error:
            continue
        if len(inside) == 12 and inside[4:8] == bytes(4) or not inside and inflate.eof:
            return name
    return ''


def kind_of(head: bytes) -> str:
    """Returns what begins with these bytes (at most HEAD are looked at): such as 'HEIC', 'text', or UNKNOWN."""
    head = head[:HEAD]
    if not head:
        return 'empty'
    for offset, pattern, kind in _COMPILED:
        if pattern.match(head, offset):
            return kind
    if head[:2] in (b'\xff\xfe', b'\xfe\xff'):
        return 'text'
    return UNKNOWN if _BINARY.search(head) or b'\xff' in head else 'text'
