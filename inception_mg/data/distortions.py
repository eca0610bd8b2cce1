"""Image to image: the distortions of the 2016 release for training, its centre crop for evaluation.

Pure functions of TensorFlow on one image; all run on the CPU inside a tf.data map. Order and constants
are those of `image_processing.py` of the 2016 release, its kernels those of TensorFlow 1 (the resizing
has half_pixel_centers=False). Every random number comes from the seed of the image, so that a stream of
images does not depend on how many of them are made at the same time.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

# The 2016 release ran a multiple of four threads and let thread i resize by method i % 4 and order the
# colours by i % 2. So four pairs occur, equally often, not eight.
NUM_VARIANTS = 4
CENTRAL_FRACTION = 0.875

_RESIZE = tf.compat.v1.image.ResizeMethod
METHODS = (_RESIZE.BILINEAR, _RESIZE.NEAREST_NEIGHBOR, _RESIZE.BICUBIC, _RESIZE.AREA)


class Colours(NamedTuple):
    """By how much the colours of one image are changed; scalars, float32."""

    brightness: tf.Tensor  # Added; within 32/255 of 0.
    saturation: tf.Tensor  # Factor of the saturation; 0.5 to 1.5.
    hue: tf.Tensor  # Turns added to the hue; within 0.2 of 0.
    contrast: tf.Tensor  # Factor of the distance to each channel's mean; 0.5 to 1.5.


def preprocess_for_evaluation(encoded: tf.Tensor, image_size: int) -> tf.Tensor:
    """Returns the centre of a JPEG, resized: float32 [image_size, image_size, 3] in [-1, 1].

    `encoded` is a scalar string; its central 87.5 % of each side are resized bilinearly, without keeping
    the aspect ratio. Running it raises InvalidArgumentError for bytes that are no image.
    """
    return resize_for_evaluation(tf.io.decode_jpeg(encoded, channels=3), image_size)


def resize_for_evaluation(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """As preprocess_for_evaluation, of a decoded image: uint8 [height, width, 3]."""
    image = tf.image.central_crop(_to_unit_range(image), CENTRAL_FRACTION)
    return _to_model_range(_resize(image, image_size, _RESIZE.BILINEAR))


def distort_for_training(encoded: tf.Tensor, bbox: tf.Tensor, image_size: int, variant: tf.Tensor,
                         seed: tf.Tensor) -> tf.Tensor:
    """Returns a random crop of a JPEG, resized, flipped and recoloured, within [-1, 1].

    `encoded` is a scalar string, `bbox` float32 [1, n, 4] (ymin, xmin, ymax, xmax as shares of the image;
    n may be 0), `variant` a scalar integer below NUM_VARIANTS (resize method and order of the colours),
    `seed` an integer pair [2]. The result is float32 [image_size, image_size, 3]. Running it raises
    InvalidArgumentError for bytes that are no JPEG and for boxes outside the image.
    """
    crop_seed, draw_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    window = sample_crop(tf.image.extract_jpeg_shape(encoded), bbox, crop_seed)
    draws = tf.random.stateless_uniform([5], draw_seed)
    image = _to_unit_range(decode_crop(encoded, window))
    image = resize_by_variant(image, image_size, variant)
    image = tf.cond(draws[0] < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
    return distort_colours(image, _draw_colours(draws[1:]), variant)


def sample_crop(shape: tf.Tensor, bbox: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random window (y, x, height, width) in pixels, int32 [4].

    It covers 5 to 100 % of an image of `shape` (int32 [3]), is 0.75 to 1.33 times as wide as high and
    holds at least a tenth of one of the boxes (`bbox` as in `distort_for_training`); without boxes, or
    after 100 attempts, the whole image serves.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape, bbox, seed, min_object_covered=0.1, aspect_ratio_range=[0.75, 1.33],
        area_range=[0.05, 1.0], max_attempts=100, use_image_if_no_bounding_boxes=True)
    return tf.concat([begin[:2], size[:2]], axis=0)


def decode_crop(encoded: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Returns the pixels of a JPEG inside `window`, uint8 [height, width, 3], without decoding the rest.

    They equal those of decoding the whole image and slicing it. For that one pixel more is decoded on
    each side: the upsampling of the colour channels looks at the neighbouring column and row.
    """
    top_left, size = window[:2], window[2:]
    start = tf.maximum(top_left - 1, 0)
    end = tf.minimum(top_left + size + 1, tf.image.extract_jpeg_shape(encoded)[:2])
    image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([start, end - start], axis=0), channels=3)
    return tf.slice(image, tf.pad(top_left - start, [[0, 1]]), tf.concat([size, [3]], axis=0))


def resize_by_variant(image: tf.Tensor, image_size: int, variant: tf.Tensor) -> tf.Tensor:
    """Returns a float32 image as [image_size, image_size, 3], resized by the method of the variant.

    Variant 0 is bilinear, 1 nearest neighbour, 2 bicubic (which overshoots [0, 1]), 3 area.
    """
    return tf.switch_case(tf.cast(variant, tf.int32), [
        lambda method=method: _resize(image, image_size, method) for method in METHODS])


def distort_colours(image: tf.Tensor, colours: Colours, variant: tf.Tensor) -> tf.Tensor:
    """Returns a float32 image [height, width, 3] of [0, 1] recoloured, cut off at 0 and 1, and stretched to [-1, 1].

    After the brightness an even variant changes saturation, hue, contrast; an odd one contrast,
    saturation, hue. The values are those of TensorFlow's adjust_* operations one after another, also where
    these leave [0, 1]. `image` has a static shape.
    """
    return tf.cond(tf.equal(variant % 2, 0),
                   lambda: _saturation_hue_contrast(image, colours), lambda: _contrast_saturation_hue(image, colours))


# One pass of compiled code costs a fifth of the passes of the operations. It works on planes, a channel each:
# XLA divides work between threads by rows, and code for anything less regular is not made of vector instructions.
_compiled = functools.partial(tf.function, autograph=False, jit_compile=tf.test.is_built_with_xla())


@_compiled
def _saturation_hue_contrast(image: tf.Tensor, colours: Colours) -> tf.Tensor:
    planes = _change_saturation_and_hue([plane + colours.brightness for plane in tf.unstack(image, axis=2)], colours)
    means = [tf.reduce_mean(_mean_of_rows(plane)) for plane in planes]
    return _join([(plane - mean) * colours.contrast + mean for plane, mean in zip(planes, means, strict=True)])


@_compiled
def _contrast_saturation_hue(image: tf.Tensor, colours: Colours) -> tf.Tensor:
    height, width, _ = image.shape
    means = tf.reduce_mean(tf.reshape(_mean_of_rows(tf.reshape(image, [height, width * 3])), [width, 3]), axis=0)
    shifts = tf.unstack(means * (1.0 - colours.contrast) + colours.brightness)
    return _join(_change_saturation_and_hue([plane * colours.contrast + shift for plane, shift in zip(
        tf.unstack(image, axis=2), shifts, strict=True)], colours))


def _change_saturation_and_hue(planes: Sequence[tf.Tensor], colours: Colours) -> list[tf.Tensor]:
    """As adjust_saturation and then adjust_hue, with one way to HSV and back."""
    red, green, blue = planes
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    per_chroma = 1.0 / tf.where(chroma > 0.0, chroma, 1.0)
    sixths = 6.0 * colours.hue + tf.where(
        tf.equal(value, red), (green - blue) * per_chroma,
        tf.where(tf.equal(value, green), (blue - red) * per_chroma + 2.0, (red - green) * per_chroma + 4.0))
    sixths -= 6.0 * tf.floor(sixths / 6.0)
    # A saturation of more than 1, and any of a colour that is nowhere positive, is cut off.
    chroma = tf.clip_by_value(chroma * colours.saturation, 0.0, tf.maximum(value, 0.0))

    def channel(share: tf.Tensor) -> tf.Tensor:
        return value - chroma * (1.0 - tf.clip_by_value(share, 0.0, 1.0))

    return [channel(tf.abs(sixths - 3.0) - 1.0), channel(2.0 - tf.abs(sixths - 2.0)),
            channel(2.0 - tf.abs(sixths - 4.0))]


def _join(planes: Sequence[tf.Tensor]) -> tf.Tensor:
    return _to_model_range(tf.clip_by_value(tf.transpose(tf.stack(planes), [1, 2, 0]), 0.0, 1.0))


def _mean_of_rows(x: tf.Tensor) -> tf.Tensor:
    """The mean [1, n] of the rows of x [m, n]. A product, which XLA makes much faster than its sums."""
    rows = x.shape[0]
    return tf.matmul(tf.fill([1, rows], 1.0 / rows), x)


def _draw_colours(draws: tf.Tensor) -> Colours:
    """Turns four uniform numbers from [0, 1) into changes of the 2016 release's ranges."""
    low = tf.constant([-32.0 / 255.0, 0.5, -0.2, 0.5])
    high = tf.constant([32.0 / 255.0, 1.5, 0.2, 1.5])
    return Colours(*tf.unstack(low + draws * (high - low)))


def _resize(image: tf.Tensor, image_size: int, method: int) -> tf.Tensor:
    if method == _RESIZE.NEAREST_NEIGHBOR:
        return _pick_nearest(image, image_size)
    image = tf.compat.v1.image.resize_images(image, [image_size, image_size], method=method)
    return tf.ensure_shape(image, [image_size, image_size, 3])


def _pick_nearest(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """As resizing by nearest neighbour, in half the time: whole pixels and then whole rows are copied."""
    def sources(length: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.range(image_size, dtype=tf.float32) * (tf.cast(length, tf.float32) / image_size), tf.int32)

    height, width, _ = tf.unstack(tf.shape(image))
    return tf.gather(tf.gather(image, sources(width), axis=1), sources(height))


def _to_unit_range(image: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(image, tf.float32)


def _to_model_range(image: tf.Tensor) -> tf.Tensor:
    return (image - 0.5) * 2.0
