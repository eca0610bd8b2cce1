"""Encoded images to pixels inside a served graph, as inception_mg/data/images.py reads files outside of one.

In TensorFlow operations alone: a JPEG that its EXIF orientation shows turned is turned, CMYK becomes RGB, a transparent
PNG is laid on white, of an animation the first frame counts. What TensorFlow cannot read (TIFF, HEIC, ...) and
what it does not look at (the orientation of other files than JPEG, transparency of GIF, BMP and WebP) the sender has to
change; docs/serving.md has the lines.
"""

import tensorflow as tf

_HEAD = 2**18  # Bytes in which the orientation is looked for; an EXIF segment has at most 64 KB and is among the first.
_ORIENTATION = 0x0112
_SHORT = 3  # The type of its value.


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """uint8 [height, width, 3] of a scalar string: JPEG, PNG, GIF, BMP, and what else tf.io.decode_image takes.

    Running it raises InvalidArgumentError for bytes that are none of these.
    """
    def other() -> tf.Tensor:
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    start = tf.strings.substr(encoded, 0, 4)
    image = tf.case([(tf.equal(tf.strings.substr(encoded, 0, 3), b'\xff\xd8\xff'), lambda: _jpeg(encoded)),
                     (tf.equal(start, b'\x89PNG'), lambda: _png(encoded))], default=other, exclusive=True)
    return tf.ensure_shape(image, [None, None, 3])


def _jpeg(encoded: tf.Tensor) -> tf.Tensor:
    image, orientation = tf.io.decode_jpeg(encoded, channels=3), exif_orientation(encoded)
    return tf.cond(orientation > 1, lambda: upright(image, orientation), lambda: image)


def _png(encoded: tf.Tensor) -> tf.Tensor:
    """On white, as transparency is in the records; an opaque one has 255 everywhere."""
    pixels = tf.cast(tf.io.decode_png(encoded, channels=4), tf.float32)
    alpha = pixels[..., 3:] / 255
    return tf.cast(tf.round(pixels[..., :3] * alpha + 255 * (1 - alpha)), tf.uint8)


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turns and mirrors an image [height, width, channels] by its EXIF orientation, a scalar of 1 to 8."""
    def one_of(*values: int) -> tf.Tensor:
        return tf.reduce_any(tf.equal(orientation, tf.constant(values, orientation.dtype)))

    image = tf.cond(one_of(5, 6, 7, 8), lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    image = tf.cond(one_of(2, 3, 6, 7), lambda: tf.reverse(image, [1]), lambda: image)
    return tf.cond(one_of(3, 4, 7, 8), lambda: tf.reverse(image, [0]), lambda: image)


def exif_orientation(encoded: tf.Tensor) -> tf.Tensor:
    """The orientation of a JPEG, a scalar string, as an int64 from 1 to 8; 1 where it says none."""
    size = tf.minimum(tf.strings.length(encoded), _HEAD)
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(encoded, 0, size), tf.uint8), tf.int64)
    size = tf.cast(size, tf.int64)
    head = tf.pad(head, [[0, 1]])  # What is read beyond the end is 0.

    def at(place: tf.Tensor) -> tf.Tensor:
        return tf.gather(head, tf.clip_by_value(place, 0, size))

    def is_exif(place: tf.Tensor) -> tf.Tensor:
        wanted = tf.constant(list(b'Exif\0\0'), tf.int64)
        named = tf.reduce_all(tf.equal(at(place + 4 + tf.range(6, dtype=tf.int64)), wanted))
        return tf.equal(at(place + 1), 0xe1) & named

    def is_before_it(place: tf.Tensor) -> tf.Tensor:
        # 0xda: the pixels begin.
        more = (place + 4 < size) & tf.equal(at(place), 0xff) & tf.not_equal(at(place + 1), 0xda)
        return more & ~is_exif(place)

    def next_segment(place: tf.Tensor) -> tuple[tf.Tensor]:
        length = 2 + at(place + 2) * 256 + at(place + 3)
        filled_up = tf.equal(at(place + 1), 0xff)
        return (place + tf.where(filled_up, tf.constant(1, tf.int64), length),)

    found, = tf.while_loop(is_before_it, next_segment, (tf.constant(2, tf.int64),))
    start = found + 10  # Where the TIFF structure begins, from which its offsets count.
    little = tf.equal(at(start), ord('I'))

    def number(place: tf.Tensor, count: int) -> tf.Tensor:
        """The `count` bytes at each place as one number."""
        digits = [at(place + index) for index in range(count)]
        values = [sum(digit * 256 ** index for index, digit in enumerate(order)) for order in (digits, digits[::-1])]
        return tf.where(little, *values)

    table = start + number(start + 4, 4)
    entries = table + 2 + 12 * tf.range(tf.minimum(number(table, 2), 512), dtype=tf.int64)
    fits = tf.equal(number(entries, 2), _ORIENTATION) & tf.equal(number(entries + 2, 2), _SHORT)
    value = tf.reduce_max(tf.where(fits, number(entries + 8, 2), tf.zeros_like(entries)))
    good = is_exif(found) & (value >= 1) & (value <= 8)
    return tf.where(good, value, tf.ones_like(value))
