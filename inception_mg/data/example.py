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

The last six are left out of records whose source has none, as the 2016 build_image_data did.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

_EDGES = ('ymin', 'xmin', 'ymax', 'xmax')


class Record(NamedTuple):
    """The tensors of one record."""

    encoded: tf.Tensor   # string []: the JPEG
    label: tf.Tensor     # int32 []: 1..number of classes
    bbox: tf.Tensor      # float32 [1, boxes, 4]: ymin, xmin, ymax, xmax as shares of height and width
    filename: tf.Tensor  # string []
    text: tf.Tensor      # string []


def build_example(encoded: bytes, height: int, width: int, label: int, text: str, filename: str, *,
                  synset: str = '', boxes: Sequence[tuple[float, float, float, float]] = ()) -> bytes:
    """Returns one serialized record; equal arguments give equal bytes.

    Args:
        encoded: the image as an RGB JPEG of height x width pixels.
        label: 1..number of classes.
        text: name of the class.
        filename: the source file; only its base name is stored.
        synset: WordNet id, '' = leave the field out.
        boxes: (ymin, xmin, ymax, xmax) of each annotated object as shares of height and width.
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
    if boxes:
        for edge, values in zip(_EDGES, zip(*boxes, strict=True), strict=True):
            features[f'image/object/bbox/{edge}'] = tf.train.Feature(
                float_list=tf.train.FloatList(value=values))
        features['image/object/bbox/label'] = _ints(*[label] * len(boxes))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # A protocol buffer's map has no order of its own: without this equal records may differ in bytes.
    return example.SerializeToString(deterministic=True)


def parse_example(serialized: tf.Tensor) -> Record:
    """Returns the tensors of one serialized record (string []).

    A field that is absent gives '' (encoded, filename, text), -1 (label) or no box. The op fails with
    InvalidArgumentError on bytes that are no Example.
    """
    text = tf.io.FixedLenFeature([], tf.string, default_value='')
    features = {
        'image/encoded': text,
        'image/filename': text,
        'image/class/text': text,
        'image/class/label': tf.io.FixedLenFeature([], tf.int64, default_value=-1),
    }
    features |= {f'image/object/bbox/{edge}': tf.io.VarLenFeature(tf.float32) for edge in _EDGES}
    fields = tf.io.parse_single_example(serialized, features)
    edges = [tf.sparse.to_dense(fields[f'image/object/bbox/{edge}']) for edge in _EDGES]
    return Record(
        encoded=fields['image/encoded'],
        label=tf.cast(fields['image/class/label'], tf.int32),
        bbox=tf.stack(edges, axis=-1)[tf.newaxis],  # four of [boxes] -> [1, boxes, 4]
        filename=fields['image/filename'],
        text=fields['image/class/text'])


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
