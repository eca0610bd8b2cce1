"""One image and what is known about it, as a tf.train.Example: the record of the 2016 release.

    image/encoded            bytes    the image as an RGB JPEG
    image/format             bytes    always 'JPEG'
    image/colorspace         bytes    always 'RGB'
    image/channels           int64    always 3
    image/height             int64    rows of pixels
    image/width              int64    columns of pixels
    image/filename           bytes    name of the source file without its folders
    image/class/label        int64    1..number of classes; 0 is kept free for the background
    image/class/text         bytes    the class for people to read, such as 'dog'
    image/class/synset       bytes    ImageNet only: the WordNet id of the class, such as 'n01440764'
    image/object/bbox/xmin   floats   one number per annotated box, as a share of the image's width
    image/object/bbox/xmax   floats     "
    image/object/bbox/ymin   floats     " of the height
    image/object/bbox/ymax   floats     "
    image/object/bbox/label  int64s   the image's label once per box

The last six are left out of records whose source has none, as the 2016 build_image_data did. Records of ImageNet
have all of them, without a number in those of boxes where an image has none. Records of others have other names for
the image, its label and its file, and may count labels from 0: RecordKeys says which.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.data.dataset_info import OURS, RecordKeys

_EDGES = ('ymin', 'xmin', 'ymax', 'xmax')
_EDGE_FEATURES = {f'image/object/bbox/{edge}': tf.io.VarLenFeature(tf.float32) for edge in _EDGES}


class Record(NamedTuple):
    """The tensors of one record."""

    encoded: tf.Tensor   # string []: the JPEG; of others' records perhaps an image of another kind
    label: tf.Tensor     # int32 []: 1..number of classes
    bbox: tf.Tensor      # float32 [1, boxes, 4]: ymin, xmin, ymax, xmax as shares of height and width, within 0..1
    filename: tf.Tensor  # string []
    text: tf.Tensor      # string []


def build_example(encoded: bytes, height: int, width: int, label: int, text: str, filename: str, *,
                  synset: str = '', boxes: Sequence[tuple[float, float, float, float]] | None = None) -> bytes:
    """Returns one serialized record; equal arguments give equal bytes.

    Args:
        encoded: the image as an RGB JPEG of height x width pixels.
        label: 1..number of classes.
        text: name of the class.
        filename: the source file; only its base name is stored.
        synset: WordNet id, '' = leave the field out.
        boxes: (ymin, xmin, ymax, xmax) of each annotated object as shares of height and width; None = leave the
            fields out.
    """
    features = {
        'image/encoded': _bytes(encoded),
        'image/format': _bytes(b'JPEG'),
        'image/colorspace': _bytes(b'RGB'),
        'image/channels': _ints(3),
        'image/height': _ints(height),
        'image/width': _ints(width),
        'image/filename': _bytes(os.fsencode(os.path.basename(filename))),
        'image/class/label': _ints(label),
        'image/class/text': _bytes(text.encode()),
    }
    if synset:
        features['image/class/synset'] = _bytes(synset.encode())
    if boxes is not None:
        for number, edge in enumerate(_EDGES):
            features[f'image/object/bbox/{edge}'] = tf.train.Feature(
                float_list=tf.train.FloatList(value=[box[number] for box in boxes]))
        features['image/object/bbox/label'] = _ints(*[label] * len(boxes))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # A protocol buffer's map has no order of its own: without this equal records may differ in bytes.
    return example.SerializeToString(deterministic=True)


def parse_example(serialized: tf.Tensor, keys: RecordKeys = OURS) -> Record:
    """Returns the tensors of one serialized record (string []), of which `keys` names the fields.

    A field that is absent gives '' (encoded, filename, text), -1 (label, as a negative one) or no box. Boxes are
    mended: cut off at the edges of the image, turned where they are reversed, and left out where nothing of them is
    inside or their edges are not equally many. The op fails with InvalidArgumentError on bytes that are no Example.
    """
    text = tf.io.FixedLenFeature([], tf.string, default_value='')
    features = {
        keys.encoded: text,
        keys.filename: text,
        keys.text: text,
        keys.label: tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    }
    fields = tf.io.parse_single_example(serialized, features | _EDGE_FEATURES)
    label = tf.clip_by_value(fields[keys.label], -1, tf.int32.max)  # A cast alone may make it a sound one.
    if keys.first_label != 1:  # Others' -1 is no class either: it must not become the background.
        label = tf.where(label < 0, label, tf.clip_by_value(label + 1 - keys.first_label, -1, tf.int32.max))
    return Record(
        encoded=fields[keys.encoded],
        label=tf.cast(label, tf.int32),
        bbox=_mended(_edges(fields))[tf.newaxis],
        filename=fields[keys.filename] if keys.filename else tf.constant(''),
        text=fields[keys.text] if keys.text else tf.constant(''))


def box_faults(serialized: tf.Tensor) -> tf.Tensor:
    """Whether parse_example mends or leaves out a box; bool [n] of n serialized records, string [n]."""
    def faulty(one: tf.Tensor) -> tf.Tensor:
        edges = _edges(tf.io.parse_single_example(one, _EDGE_FEATURES))
        mended = _mended(edges)
        counts = tf.stack([tf.size(edge) for edge in edges])
        if_whole = lambda: tf.reduce_any(tf.not_equal(tf.stack(edges, axis=-1), mended))  # noqa: E731
        return tf.cond(tf.reduce_all(tf.equal(counts, tf.shape(mended)[0])), if_whole, lambda: tf.constant(True))

    return tf.map_fn(faulty, serialized, fn_output_signature=tf.bool)


def _edges(fields: dict) -> list[tf.Tensor]:
    return [tf.sparse.to_dense(fields[name]) for name in _EDGE_FEATURES]


def _mended(edges: Sequence[tf.Tensor]) -> tf.Tensor:
    """Four of float32 [boxes] in the order of _EDGES to [boxes, 4] of those with an area inside the image."""
    counts = tf.stack([tf.size(edge) for edge in edges])
    boxes = tf.stack([edge[:tf.reduce_min(counts)] for edge in edges], axis=-1)
    first, last = boxes[:, :2], boxes[:, 2:]
    low, high = (tf.clip_by_value(which(first, last), 0.0, 1.0) for which in (tf.minimum, tf.maximum))
    sound = tf.reduce_all((low < high) & tf.math.is_finite(first + last), axis=1)
    sound &= tf.equal(tf.reduce_min(counts), tf.reduce_max(counts))
    return tf.boolean_mask(tf.concat([low, high], axis=1), sound)


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
