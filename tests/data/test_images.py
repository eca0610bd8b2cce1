"""Any image file becomes an RGB JPEG that TensorFlow decodes, or a reason why not."""

import io
import multiprocessing
import os
import signal

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from inception_mg.data import images
from inception_mg.errors import UserError

_COLOURS = [(200, 30, 40), (20, 180, 60), (30, 50, 210), (120, 120, 120)]
_ORIENTATION = 0x0112


def _picture(height=32, width=48) -> Image.Image:
    """Four plain quarters, so that compression leaves the colours alone and a turn shows."""
    pixels = np.zeros((height, width, 3), np.uint8)
    rows, columns = height // 2, width // 2
    for quarter, colour in enumerate(_COLOURS):
        top, left = rows * (quarter // 2), columns * (quarter % 2)
        pixels[top:top + rows, left:left + columns] = colour
    return Image.fromarray(pixels)


def _saved(image: Image.Image, file_format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def _decoded(data: bytes) -> np.ndarray:
    """What training sees, as int32 [height, width, 3]."""
    jpeg = images.to_jpeg(data, quality=95)
    assert Image.open(io.BytesIO(jpeg.data)).mode == 'RGB'
    image_v = tf.io.decode_jpeg(jpeg.data, channels=3).numpy()
    assert image_v.shape == (jpeg.height, jpeg.width, 3)
    return image_v.astype(np.int32)


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'subsampling': 0}, {'keep_rgb': True}])
def test_a_three_channel_jpeg_stays_byte_for_byte(options):
    data = _saved(_picture(), 'JPEG', **options)
    assert images.to_jpeg(data, quality=50) == images.Jpeg(data, 32, 48)


@pytest.mark.parametrize('file_format, mode', [
    ('PNG', 'RGB'), ('PNG', 'P'), ('PNG', 'RGBA'), ('GIF', 'P'), ('BMP', 'RGB'), ('TIFF', 'RGB'),
    ('TIFF', 'CMYK'), ('PPM', 'RGB'), ('JPEG', 'CMYK'), ('WEBP', 'RGB')])
def test_colours_survive(file_format, mode):
    picture = _picture()
    converted = picture.quantize(16) if mode == 'P' else picture.convert(mode)
    options = {'lossless': True} if file_format == 'WEBP' else {}
    difference = np.abs(_decoded(_saved(converted, file_format, **options)) - np.asarray(picture, np.int32))
    assert difference.max() <= 10 and difference.mean() <= 3


def test_cmyk_jpeg_agrees_with_tensorflow_with_and_without_the_adobe_mark():
    data = _saved(_picture().convert('CMYK'), 'JPEG', quality=95)
    mark = data.index(b'\xff\xee')
    length = int.from_bytes(data[mark + 2:mark + 4], 'big')
    for each in (data, data[:mark] + data[mark + 2 + length:]):
        expected = tf.io.decode_jpeg(each, channels=3).numpy().astype(np.int32)
        assert np.abs(_decoded(each) - expected).max() <= 10


@pytest.mark.parametrize('file_format', ['PNG', 'TIFF'])
def test_sixteen_bit_grey_is_scaled_not_clipped(file_format):
    grey = np.linspace(0, 65535, 64).astype(np.uint16)[np.newaxis].repeat(16, axis=0)
    data = _saved(Image.fromarray(grey), file_format)
    assert np.abs(_decoded(data)[..., 0] - grey / 257).max() <= 3


@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_sixteen_bit_png_of_any_channels(channels):
    pixels = np.full((16, 16, channels), 150 * 257, np.uint16)
    if channels in (2, 4):
        pixels[..., -1] = 65535  # opaque
    data = tf.io.encode_png(pixels).numpy()
    assert np.abs(_decoded(data) - 150).max() <= 2


@pytest.mark.parametrize('mode', ['L', '1'])
def test_grey_becomes_three_equal_channels(mode):
    for file_format in ('PNG', 'JPEG') if mode == 'L' else ('PNG', 'TIFF'):
        image_v = _decoded(_saved(_picture().convert(mode), file_format))
        assert np.abs(image_v - image_v.mean(axis=-1, keepdims=True)).max() <= 1


def test_transparent_pixels_are_white():
    clear = _picture().convert('RGBA')
    clear.putalpha(0)
    assert _decoded(_saved(clear, 'PNG')).min() >= 254
    palette = Image.new('P', (16, 16), 0)
    palette.putpalette([10, 200, 30] * 2)
    assert _decoded(_saved(palette, 'PNG', transparency=0)).min() >= 254
    assert _decoded(_saved(palette, 'GIF', transparency=0)).min() >= 254


def test_first_frame_of_an_animation():
    frames = [Image.new('RGB', (16, 16), colour) for colour in _COLOURS]
    for file_format in ('GIF', 'TIFF', 'PNG', 'WEBP'):
        data = _saved(frames[0], file_format, save_all=True, append_images=frames[1:])
        assert np.abs(_decoded(data) - _COLOURS[0]).max() <= 10, file_format


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'TIFF'])
def test_a_turned_photo_is_upright(orientation, file_format):
    # How the stored pixels differ from the upright picture, as a number of PIL.Image.Transpose.
    back = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]
    picture = _picture()
    stored = picture if back is None else picture.transpose(Image.Transpose(back))
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    data = _saved(stored, file_format, exif=exif)
    image_v = _decoded(data)
    assert image_v.shape == (32, 48, 3)
    for quarter, colour in enumerate(_COLOURS):
        assert np.abs(image_v[8 + 16 * (quarter // 2), 12 + 24 * (quarter % 2)] - colour).max() <= 10


def test_jpeg_with_more_behind_it_decodes_in_tensorflow():
    data = _saved(_picture(), 'JPEG')
    assert images.to_jpeg(data + b'\0\0\n', 95).data == data + b'\0\0\n'
    for tail in (b'appended by a camera', b'\xff\xda\xff\x01'):
        assert _decoded(data + tail).shape == (32, 48, 3)
    several = _saved(_picture(), 'MPO', save_all=True, append_images=[_picture()])
    assert Image.open(io.BytesIO(several)).format == 'MPO'
    assert _decoded(several).shape == (32, 48, 3)


_BAD = {
    'empty': (b'', 'empty'),
    'text': (b'These are notes, not a photo.\n', 'not an image'),
    'cut header': (_saved(_picture(), 'JPEG')[:300], 'Truncated'),
    'cut pixels': (_saved(_picture(), 'JPEG')[:-60], 'truncated'),
    'cut png': (_saved(_picture(), 'PNG')[:-60], '[Tt]runcated'),
    'cut bmp': (_saved(_picture(), 'BMP')[:-60], 'truncated'),
    'zeros': (b'\xff\xd8\xff' + bytes(64), '.'),
    'floats': (_saved(Image.new('F', (8, 8)), 'TIFF'), 'no known range'),
    'eps': (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n', 'not an image'),
}


@pytest.mark.parametrize('data, reason', _BAD.values(), ids=_BAD)
def test_what_is_no_whole_image_gets_a_reason_of_one_line(data, reason):
    with pytest.raises(images.BadImage, match=reason) as caught:
        images.to_jpeg(data, quality=95)
    assert str(caught.value) and '\n' not in str(caught.value)


def test_every_cut_of_a_jpeg_is_bad_or_decodes():
    data = _saved(_picture(), 'JPEG')
    for end in range(1, len(data), 7):
        try:
            _decoded(data[:end])
        except images.BadImage:
            continue
        assert end > len(data) - 8, f'accepted {end} of {len(data)} bytes'


def test_a_decompression_bomb_is_a_bad_file(monkeypatch):
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    with pytest.raises(images.BadImage, match='DecompressionBomb'):
        images.to_jpeg(_saved(_picture(), 'PNG'), quality=95)


def test_files_that_cannot_be_read_are_returned_with_a_reason(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'link').symlink_to(tmp_path / 'gone')
    (tmp_path / 'loop').symlink_to('loop')
    (tmp_path / 'folder').mkdir()
    reasons = {'pipe': ('not a regular file', 'not a file'), 'link': ('a link to nothing', 'link'),
               'none': ('No such file', 'unreadable file'), 'loop': ('to itself', 'link'),
               'x\0y': ('null', 'unreadable file'),
               'folder': ('not a regular file', 'not a file')}
    for name, (reason, kind) in reasons.items():
        outcome = images.convert_file(str(tmp_path / name), 95)
        assert outcome.jpeg is None and reason in outcome.reason and outcome.kind == kind


def test_order_and_result_do_not_depend_on_the_processes(tmp_path):
    paths = []
    for number in range(40):
        paths.append(str(tmp_path / str(number)))
        Image.new('RGB', (8 + number, 8), _COLOURS[number % 4]).save(paths[-1], 'PNG')
    (tmp_path / '7').write_bytes(b'')
    alone = list(images.convert_files(paths, 95, processes=1))
    assert [outcome.jpeg and outcome.jpeg.width for outcome in alone] == [
        None if number == 7 else 8 + number for number in range(40)]
    assert list(images.convert_files(paths, 95, processes=2)) == alone


def test_a_killed_process_is_an_error_not_a_hang(tmp_path):
    path = tmp_path / 'a.png'
    _picture().save(path)
    outcomes = images.convert_files([str(path)] * 500, 95, processes=2)
    next(outcomes)
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(UserError, match='process died.*num_threads'):
        list(outcomes)


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'restart_marker_rows': 1}, {'subsampling': 0}])
@pytest.mark.parametrize('mode', ['RGB', 'L', 'CMYK'])
def test_a_cut_jpeg_with_an_end_mark_is_not_whole(options, mode):
    noise = Image.fromarray(np.random.RandomState(1).randint(0, 255, (64, 64, 3), np.uint8)).convert(mode)
    data = _saved(noise, 'JPEG', **options)
    start = data.index(b'\xff\xda') + 20
    for share in (0.05, 0.5, 0.97):
        with pytest.raises(images.BadImage, match='not whole|truncated|Truncated') as caught:
            images.to_jpeg(data[:int(start + share * (len(data) - start))] + b'\xff\xd9', 95)
        assert caught.value.kind == 'damaged JPEG'
    assert images.to_jpeg(data, 95).width == 64


def test_a_jpeg_without_its_fine_scans_is_not_whole():
    data = _saved(_picture(), 'JPEG', progressive=True)
    last = data.rindex(b'\xff\xda')
    with pytest.raises(images.BadImage, match='not whole'):
        images.to_jpeg(data[:last] + b'\xff\xd9', 95)


@pytest.mark.parametrize('data, kind', [
    (b'\0\0\0\x1cftypheix' + bytes(20), 'HEIC'), (b'\0\0\0\x18ftypmif1\0\0\0\0mif1heic', 'HEIC'),
    (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- x -->\n<svg/>', 'SVG'), (b'%PDF-1.7\n', 'PDF'), (b'8BPS\0\1', 'PSD'),
    (b'\xff\x0a\xfa\x0b', 'JPEG XL'), (b'<!DOCTYPE html><html>', 'HTML'), (b'PK\3\4', 'ZIP'),
    (b'\0\0\0\x20ftypisom', 'MP4 or MOV video'), (b'not a photo', 'text'),
    (bytes(500), 'zeros'), (b'\1\2\3', 'unknown'),
    (b'', 'empty')])
def test_what_is_no_image_is_named_by_kind(data, kind):
    with pytest.raises(images.BadImage, match='.' if kind in ('unknown', 'empty') else kind) as caught:
        images.to_jpeg(data, 95)
    assert caught.value.kind == kind


def test_sizes_that_no_record_holds():
    with pytest.raises(images.BadImage, match='65600 x 2 pixels.*65500'):
        images.to_jpeg(_saved(Image.new('1', (65600, 2)), 'PNG'), 95)
    with pytest.raises(images.BadImage, match='900000000 pixels') as caught:
        images.to_jpeg(_saved(Image.new('1', (30000, 30000)), 'PNG'), 95)
    assert caught.value.kind == 'too large'


def test_webp_whose_end_was_never_written():
    data = _saved(Image.fromarray(np.random.RandomState(1).randint(0, 255, (64, 64, 3), np.uint8)), 'WEBP')
    with pytest.raises(images.BadImage, match='not whole'):
        images.to_jpeg(data[:-600] + bytes(600), 95)


def test_kinds_are_counted():
    assert images.count_kinds(['PDF', 'HEIC', 'HEIC']) == '2 HEIC, 1 PDF'
