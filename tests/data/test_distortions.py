"""Against what the 2016 code computed under TensorFlow 1.15 (golden_preprocess.*), and the crops it drew."""

import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT
from forms import FAST, in_both_forms

from inception_mg.data import distortions
from inception_mg.fast import colours as fast_colours

FOLDER = ROOT / 'tests'
FIGURES = json.loads((FOLDER / 'golden_preprocess.json').read_text())
ARRAYS = np.load(FOLDER / 'golden_preprocess.npz')
IMAGES = tuple(FIGURES['evaluation'])


def _jpeg(name: str) -> bytes:
    return ARRAYS[f'{name}_jpeg'].tobytes()


def _run(build, *args):
    """Returns the value of build(*args) made in a graph of its own."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build(*args))


def _map(build, count: int) -> list:
    """Returns the values of build(0), build(1), ... inside a data set, as the input pipeline uses it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.range(count).map(tf.autograph.experimental.do_not_convert(build),
                                                   num_parallel_calls=2)
        element = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        return [session.run(element) for _ in range(count)]


@pytest.mark.parametrize('name', IMAGES)
def test_evaluation_equals_the_2016_release(name):
    golden = FIGURES['evaluation'][name]
    image = _run(distortions.preprocess_for_evaluation, _jpeg(name), 299)
    assert image.shape == (299, 299, 3) and image.dtype == np.float32
    np.testing.assert_allclose(image.mean((0, 1), np.float64), golden['out_mean'], atol=1e-5)
    np.testing.assert_allclose(image.std((0, 1), np.float64), golden['out_std'], atol=1e-5)
    np.testing.assert_allclose(image[::13, ::13], ARRAYS[f'{name}_out_every13'], atol=1e-5)
    for patch, begin in (('center', 147), ('topleft', 0), ('bottomright', 294)):
        np.testing.assert_allclose(image[begin:begin + 5, begin:begin + 5],
                                   ARRAYS[f'{name}_patch_{patch}'], atol=1e-5)


@pytest.mark.parametrize('variant,method', [
    (0, 'BILINEAR'), (1, 'NEAREST_NEIGHBOR'), (2, 'BICUBIC'), (3, 'AREA')])
def test_each_variant_has_its_resize_method(variant, method):
    golden = FIGURES['resize_methods'][method]
    source = np.random.RandomState(6).uniform(0, 1, (50, 70, 3)).astype(np.float32)
    image = _run(distortions.resize_by_variant, source, 299, variant)
    np.testing.assert_allclose(image.mean((0, 1), np.float64), golden['mean'], atol=1e-5)
    np.testing.assert_allclose(image.std((0, 1), np.float64), golden['std'], atol=1e-5)
    np.testing.assert_allclose(image[150, 150], golden['px_150_150'], atol=1e-5)
    np.testing.assert_allclose(image[298, 298], golden['px_298_298'], atol=1e-5)
    np.testing.assert_allclose([image.min(), image.max()], [golden['min'], golden['max']], atol=1e-5)


def _colours(**changes) -> distortions.Colours:
    neutral = {'brightness': 0.0, 'saturation': 1.0, 'hue': 0.0, 'contrast': 1.0}
    return distortions.Colours(**{name: tf.constant(value) for name, value in (neutral | changes).items()})


@pytest.mark.parametrize('change,key', [
    ({'brightness': 0.1}, 'adjust_brightness_0p1_first'),
    ({'saturation': 1.3}, 'adjust_saturation_1p3_first'),
    ({'hue': 0.15}, 'adjust_hue_0p15_first'), ({'contrast': 1.4}, 'adjust_contrast_1p4_first')])
@pytest.mark.parametrize('variant', [0, 1])
@in_both_forms
def test_each_change_of_colour_equals_the_2016_release(change, key, variant, operations):
    source = np.random.RandomState(5).uniform(0, 1, (4, 4, 3)).astype(np.float32)
    image = _run(lambda: distortions.distort_colours(source, _colours(**change), variant, operations))
    np.testing.assert_allclose(image[0, 0], np.clip(FIGURES['colours'][key], 0, 1) * 2 - 1, atol=4e-6)


def _colour_steps(x, brightness: float, saturation: float, hue: float, contrast: float, even: bool):
    """The 2016 order written out, one op of TensorFlow's after another."""
    x = tf.image.adjust_brightness(x, brightness)
    if even:
        x = tf.image.adjust_saturation(x, saturation)
        x = tf.image.adjust_hue(x, hue)
        x = tf.image.adjust_contrast(x, contrast)
    else:
        x = tf.image.adjust_contrast(x, contrast)
        x = tf.image.adjust_saturation(x, saturation)
        x = tf.image.adjust_hue(x, hue)
    return tf.clip_by_value(x, 0.0, 1.0) * 2.0 - 1.0


@pytest.mark.parametrize('variant', range(distortions.NUM_VARIANTS))
@pytest.mark.parametrize('values', [(0.12, 1.4, 0.19, 1.5), (-0.12, 0.6, -0.19, 1.4), (0.1, 1.5, -0.05, 0.6)])
@in_both_forms
def test_colours_change_in_the_order_of_the_variant(variant, values, operations):
    source = np.random.RandomState(7).uniform(-0.2, 1.2, (30, 40, 3)).astype(np.float32)
    source[:2], source[2:4], source[4:6] = 0.0, 1.0, 0.5  # Black, white and grey have no hue.
    colours = dict(zip(('brightness', 'saturation', 'hue', 'contrast'), values, strict=True))
    image = _run(lambda: distortions.distort_colours(source, _colours(**colours), variant, operations))
    wanted = _run(lambda: _colour_steps(source, *values, even=variant % 2 == 0))
    other = _run(lambda: _colour_steps(source, *values, even=variant % 2 == 1))
    np.testing.assert_allclose(image, wanted, atol=1e-5)
    assert np.abs(image - other).max() > 0.01


@pytest.mark.parametrize('variant,name', [(0, 'saturation_hue_contrast'), (1, 'contrast_saturation_hue')])
def test_colours_without_a_compiler_are_the_same(variant, name, monkeypatch):
    source = np.random.RandomState(9).uniform(-0.2, 1.2, (17, 23, 3)).astype(np.float32)
    values = (-0.1, 1.5, 0.17, 1.3)
    monkeypatch.setattr(fast_colours, name, getattr(fast_colours, name).python_function)
    image = _run(lambda: distortions.distort_colours(
        source, distortions.Colours(*map(tf.constant, values)), variant, FAST))
    wanted = _run(lambda: _colour_steps(source, *values, even=variant == 0))
    np.testing.assert_allclose(image, wanted, atol=1e-5)


@pytest.mark.parametrize('height,width', [(1, 1), (7, 13), (100, 75), (299, 299), (500, 375)])
def test_nearest_pixels_are_those_of_the_resizing(height, width):
    source = np.random.RandomState(8).uniform(0, 1, (height, width, 3)).astype(np.float32)
    for size in (75, 299):
        image = _run(distortions.resize_by_variant, source, size, 1)
        wanted = _run(lambda size=size: tf.compat.v1.image.resize_nearest_neighbor(source[None], [size, size])[0])
        np.testing.assert_array_equal(image, wanted)


@pytest.mark.parametrize('name', IMAGES)
def test_decoding_a_crop_equals_cropping_the_decoded(name):
    whole = _run(lambda: tf.io.decode_jpeg(_jpeg(name), channels=3))
    height, width, _ = whole.shape
    rng = np.random.RandomState(2)
    sizes = rng.randint(1, [height, width], (60, 2))
    windows = [(0, 0, height, width), (height - 1, width - 1, 1, 1)]
    windows += [(rng.randint(height - h + 1), rng.randint(width - w + 1), h, w) for h, w in sizes]
    table = np.array(windows, np.int32)
    crops = _map(lambda i: distortions.decode_crop(_jpeg(name), tf.gather(table, i)), len(windows))
    for (y, x, h, w), crop in zip(windows, crops, strict=True):
        np.testing.assert_array_equal(crop, whole[y:y + h, x:x + w])


def test_crops_are_drawn_as_in_the_2016_release():
    golden = FIGURES['crops']
    bbox = np.array(golden['bbox'], np.float32).reshape(1, 1, 4)
    windows = np.array(_map(lambda i: distortions.sample_crop(
        np.array([240, 320, 3], np.int32), bbox, tf.stack([3, i])), 2000))
    area = windows[:, 2] * windows[:, 3] / (240 * 320)
    aspect = windows[:, 3] / windows[:, 2]
    # Four standard errors of the mean of 2000 draws, on both sides of the comparison.
    assert abs(area.mean() - golden['area_frac_mean']) < 4 * area.std() * np.sqrt(2 / 2000)
    np.testing.assert_allclose(np.quantile(area, [0.05, 0.5, 0.95]),
                               golden['area_frac_quantiles_5_50_95'], atol=0.05)
    assert abs(aspect.mean() - golden['aspect_w_over_h_mean']) < 4 * aspect.std() * np.sqrt(2 / 2000)
    assert aspect.min() > 0.735 and aspect.max() < 1.35
    assert (windows[:, :2] >= 0).all() and (windows[:, :2] + windows[:, 2:] <= [240, 320]).all()


def test_without_boxes_the_crops_cover_the_whole_image():
    windows = np.array(_map(lambda i: distortions.sample_crop(
        np.array([240, 320, 3], np.int32), np.zeros((1, 0, 4), np.float32), tf.stack([3, i])), 300))
    assert windows[:, :2].min(0).max() < 10
    assert len(np.unique(windows, axis=0)) > 250


def _distorted(name: str, count: int, size: int = 80, seed: int = 4) -> np.ndarray:
    return np.array(_map(lambda i: distortions.distort_for_training(
        _jpeg(name), tf.zeros([1, 0, 4]), size, i % distortions.NUM_VARIANTS, tf.stack([seed, i])), count))


def test_distorted_images_fill_the_range_and_differ():
    images = _distorted(IMAGES[0], 40)
    assert images.shape == (40, 80, 80, 3) and images.dtype == np.float32
    assert images.min() == -1.0 and images.max() == 1.0
    assert len({image.tobytes() for image in images}) == 40


def test_a_seed_fixes_the_image():
    images = _distorted(IMAGES[1], 4)
    np.testing.assert_array_equal(images, _distorted(IMAGES[1], 4))
    assert not np.array_equal(images, _distorted(IMAGES[1], 4, seed=5))


def test_half_of_the_images_are_flipped():
    """A grey ramp from dark to bright keeps its direction or turns, whatever its crop and colours."""
    ramp = np.tile(np.linspace(0, 255, 200).astype(np.uint8)[None, :, None], (200, 1, 3))
    encoded = _run(lambda: tf.io.encode_jpeg(ramp))
    images = np.array(_map(lambda i: distortions.distort_for_training(
        encoded, tf.zeros([1, 0, 4]), 80, i % 4, tf.stack([1, i])), 200))
    flipped = images[:, :, 0].mean((1, 2)) > images[:, :, -1].mean((1, 2))
    assert 70 < flipped.sum() < 130
