"""Image to image: the distortions of the 2016 release for training, its centre crop for evaluation.

Pure functions of TensorFlow on one image; all run on the CPU inside a tf.data map. Order and constants
are those of `image_processing.py` of the 2016 release, its kernels those of TensorFlow 1 (the resizing
has half_pixel_centers=False). Every random number comes from the seed of the image, so that a stream of
images does not depend on how many of them are made at the same time.
"""

from typing import NamedTuple

import tensorflow as tf

from inception_mg.fast.operations import PLAIN, Operations

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
    """Returns the centre of an image, resized: float32 [image_size, image_size, 3] in [-1, 1].

    `encoded` is a scalar string, a JPEG or what else decode_image takes; its central 87.5 % of each side are resized
    bilinearly, without keeping the aspect ratio. Running it raises InvalidArgumentError for bytes that are no image.
    """
    return resize_for_evaluation(decode_image(encoded), image_size)


def decode_image(encoded: tf.Tensor, ratio: int = 1) -> tf.Tensor:
    """Returns the pixels of a JPEG, PNG, GIF, BMP or WebP: uint8 [height, width, 3].

    Of a GIF the first frame is taken; an animated WebP is refused. Grey becomes three equal channels, transparency is
    dropped. `ratio` (1, 2, 4 or 8) makes a JPEG so many times smaller. Running it raises InvalidArgumentError for bytes
    that are none of these.
    """
    return tf.cond(tf.io.is_jpeg(encoded), lambda: tf.io.decode_jpeg(encoded, channels=3, ratio=ratio),
                   lambda: _decode_other(encoded))


def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    # A WebP has a dimension for its frames all the same.
    return tf.reshape(image, tf.concat([[-1], tf.shape(image)[-3:-1], [3]], axis=0))[0]


def resize_for_evaluation(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """As preprocess_for_evaluation, of a decoded image: uint8 [height, width, 3]."""
    return to_model_range(resize_to_unit_range(image, image_size))


def resize_to_unit_range(image: tf.Tensor, image_size: int) -> tf.Tensor:
    """The same in [0, 1]."""
    image = tf.image.central_crop(_to_unit_range(image), CENTRAL_FRACTION)
    return _resize(image, image_size, _RESIZE.BILINEAR)


def to_model_range(image: tf.Tensor) -> tf.Tensor:
    """[0, 1] -> [-1, 1], what the networks take."""
    return (image - 0.5) * 2.0


def distort_for_training(encoded: tf.Tensor, bbox: tf.Tensor, image_size: int, variant: tf.Tensor,
                         seed: tf.Tensor, operations: Operations = PLAIN) -> tf.Tensor:
    """Returns a random crop of an image, resized, flipped and recoloured, within [-1, 1].

    `encoded` is a scalar string, a JPEG or what else decode_image takes, `bbox` float32 [1, n, 4] (ymin, xmin, ymax,
    xmax as shares of the image; n may be 0), `variant` a scalar integer below NUM_VARIANTS (resize method and order of
    the colours), `seed` an integer pair [2]. The result is float32 [image_size, image_size, 3]. Running it raises
    InvalidArgumentError for bytes that are no image and for boxes outside the image.
    """
    crop_seed, draw_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    draws = tf.random.stateless_uniform([5], draw_seed)

    def crop_jpeg() -> tf.Tensor:
        return decode_crop(encoded, sample_crop(tf.image.extract_jpeg_shape(encoded), bbox, crop_seed))

    def crop_other() -> tf.Tensor:
        whole = _decode_other(encoded)
        window = sample_crop(tf.shape(whole), bbox, crop_seed)
        return tf.slice(whole, tf.pad(window[:2], [[0, 1]]), tf.concat([window[2:], [3]], axis=0))

    image = _to_unit_range(tf.cond(tf.io.is_jpeg(encoded), crop_jpeg, crop_other))
    image = resize_by_variant(image, image_size, variant)
    image = tf.cond(draws[0] < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
    return distort_colours(image, _draw_colours(draws[1:]), variant, operations)


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


def distort_colours(image: tf.Tensor, colours: Colours, variant: tf.Tensor, operations: Operations = PLAIN
                    ) -> tf.Tensor:
    """Returns a float32 image [height, width, 3] of [0, 1] recoloured, cut off at 0 and 1, and stretched to [-1, 1].

    After the brightness an even variant changes saturation, hue, contrast; an odd one contrast,
    saturation, hue. `image` has a static shape.
    """
    if operations.recolour:
        return operations.recolour(image, *colours, tf.equal(variant % 2, 0))
    image = tf.image.adjust_brightness(image, colours.brightness)

    def change_saturation_and_hue(image: tf.Tensor) -> tf.Tensor:
        return tf.image.adjust_hue(tf.image.adjust_saturation(image, colours.saturation), colours.hue)

    image = tf.cond(tf.equal(variant % 2, 0),
                    lambda: tf.image.adjust_contrast(change_saturation_and_hue(image), colours.contrast),
                    lambda: change_saturation_and_hue(tf.image.adjust_contrast(image, colours.contrast)))
    return to_model_range(tf.clip_by_value(image, 0.0, 1.0))


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
