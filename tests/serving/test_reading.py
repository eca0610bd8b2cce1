"""Reading within a served graph: every file as our own programs read it."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from inception_mg.data.images import to_jpeg
from inception_mg.serving import reading

v1 = tf.compat.v1
PIXELS = np.kron(np.random.RandomState(5).randint(0, 255, (4, 6, 3)), np.ones((16, 16, 1))).astype(np.uint8)


@pytest.fixture(scope='module')
def decode():
    """bytes -> pixels by the graph."""
    with tf.Graph().as_default() as graph:
        encoded = v1.placeholder(tf.string, [])
        image, orientation = reading.decode(encoded), reading.exif_orientation(encoded)
    with v1.Session(graph=graph) as session:
        yield lambda data: session.run((image, orientation), {encoded: data})


def encoded(mode: str = 'RGB', kind: str = 'JPEG', pixels=PIXELS, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def ours(data: bytes) -> np.ndarray:
    """The pixels of the record that the programs make of a file."""
    return np.asarray(Image.open(io.BytesIO(to_jpeg(data, 100).data)))


def exif(orientation: int, little: bool = True, before: int = 0) -> bytes:
    """A block with that orientation after `before` other entries."""
    made = Image.Exif()
    made.endian = '<' if little else '>'
    for number in range(before):
        made[0x0100 + number] = 7
    made[0x0112] = orientation
    return made.tobytes()


@pytest.mark.parametrize('orientation', range(1, 9))
def test_a_turned_jpeg_is_turned(decode, orientation):
    data = encoded(exif=exif(orientation), quality=95)
    image_v, orientation_v = decode(data)
    want = ours(data)
    assert orientation_v == orientation and image_v.shape == want.shape
    assert np.abs(image_v.astype(int) - want).mean() < 2
    assert np.abs(image_v[::-1].astype(int) - want).mean() > 20  # Another way up would be seen.


def test_where_the_orientation_stands(decode):
    xmp = b'\xff\xe1\x00\x0chttp://ns\0'
    data = encoded(exif=exif(6, little=False, before=3))
    assert decode(data)[1] == 6
    assert decode(data[:2] + xmp + b'\xff' + data[2:])[1] == 6  # Behind another block, and a byte that fills up.
    assert decode(encoded())[1] == 1 and decode(encoded(exif=exif(9)))[1] == 1
    broken = bytearray(data)
    broken[data.index(b'Exif') + 10:data.index(b'Exif') + 14] = b'\xff\xff\xff\xff'  # It points beyond the end.
    assert decode(bytes(broken))[1] == 1


def test_transparency_and_cmyk(decode):
    clear = np.dstack([PIXELS, np.linspace(0, 255, PIXELS[..., 0].size).reshape(PIXELS.shape[:2]).astype(np.uint8)])
    files = {'rgba': encoded('RGBA', 'PNG', clear), 'grey': encoded('LA', 'PNG', clear),
             'palette': encoded('P', 'PNG', transparency=0), 'plain': encoded('RGB', 'PNG'),
             'cmyk': encoded('CMYK', quality=95), 'bmp': encoded('RGB', 'BMP'), 'gif': encoded('P', 'GIF')}
    for name, data in files.items():
        image_v, want = decode(data)[0].astype(int), ours(data).astype(int)
        assert np.abs(image_v - want).mean() < 2, name
    assert (decode(files['rgba'])[0][0, :4] > 240).all()  # Clear pixels are white, whatever colour they hide.


def test_no_image_is_an_error(decode):
    for data in (b'', b'no image', b'\xff\xd8\xff', b'\x89PNG\r\n'):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode(data)
