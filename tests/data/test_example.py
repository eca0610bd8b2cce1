"""Records as written, and as the programs of 2016 wrote them."""

import numpy as np
import tensorflow as tf

from inception_mg.data.example import Record, build_example, parse_example


def _parsed(serialized: bytes) -> Record:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.from_tensors(serialized).map(parse_example)
        record = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        assert [tensor.dtype for tensor in record] == [tf.string, tf.int32, tf.float32, tf.string, tf.string]
        return session.run(record)


def _feature(*values) -> tf.train.Feature:
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _serialized(**fields) -> bytes:
    features = {f'image/{name.replace("__", "/")}': value for name, value in fields.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def test_every_field_of_a_built_record():
    example = tf.train.Example.FromString(build_example(
        b'jpeg', 20, 30, 2, 'Käfer', '/photos/Käfer/a b.PNG', synset='n02',
        boxes=[(.1, .2, .3, .4), (0., 0., 1., 1.)]))
    feature = example.features.feature
    assert {name: list(getattr(value, value.WhichOneof('kind')).value) for name, value in feature.items()
            if 'bbox/' not in name or name.endswith('label')} == {
        'image/encoded': [b'jpeg'], 'image/format': [b'JPEG'], 'image/colorspace': [b'RGB'],
        'image/channels': [3], 'image/height': [20], 'image/width': [30], 'image/filename': [b'a b.PNG'],
        'image/class/label': [2], 'image/class/text': ['Käfer'.encode()], 'image/class/synset': [b'n02'],
        'image/object/bbox/label': [2, 2]}
    for edge, values in {'ymin': [.1, 0], 'xmin': [.2, 0], 'ymax': [.3, 1], 'xmax': [.4, 1]}.items():
        np.testing.assert_allclose(feature[f'image/object/bbox/{edge}'].float_list.value, values)


def test_optional_fields_are_left_out():
    example = tf.train.Example.FromString(build_example(b'jpeg', 2, 3, 1, 'dog', 'a.jpg'))
    assert not [name for name in example.features.feature if 'bbox' in name or 'synset' in name]


def test_equal_arguments_give_equal_bytes():
    assert len({build_example(b'jpeg', 2, 3, 1, 'dog', 'a.jpg') for _ in range(20)}) == 1


def test_what_was_built_is_parsed():
    record_v = _parsed(build_example(b'jpeg', 2, 3, 7, 'dog', 'x/a.jpg', boxes=[(.1, .2, .3, .4)]))
    assert (record_v.encoded, record_v.label) == (b'jpeg', 7)
    assert (record_v.filename, record_v.text) == (b'a.jpg', b'dog')
    np.testing.assert_allclose(record_v.bbox, [[[.1, .2, .3, .4]]])


def test_a_2016_record_of_own_images_without_boxes():
    record_v = _parsed(_serialized(
        height=_feature(2), width=_feature(3), colorspace=_feature(b'RGB'), channels=_feature(3),
        class__label=_feature(3), class__text=_feature(b'roses'), format=_feature(b'JPEG'),
        filename=_feature(b'r.jpg'), encoded=_feature(b'jpeg')))
    assert (record_v.label, record_v.text, record_v.bbox.shape) == (3, b'roses', (1, 0, 4))


def test_a_2016_imagenet_record_with_two_boxes():
    record_v = _parsed(_serialized(
        class__label=_feature(1000), class__synset=_feature(b'n15075141'),
        class__text=_feature(b'toilet tissue'),
        object__bbox__xmin=_feature(.1, .2), object__bbox__xmax=_feature(.3, .4),
        object__bbox__ymin=_feature(.5, .6), object__bbox__ymax=_feature(.7, .8),
        object__bbox__label=_feature(1000, 1000), filename=_feature(b'n.JPEG'), encoded=_feature(b'jpeg')))
    assert record_v.label == 1000
    np.testing.assert_allclose(record_v.bbox, [[[.5, .1, .7, .3], [.6, .2, .8, .4]]])


def test_absent_fields():
    record_v = _parsed(_serialized(width=_feature(3)))
    assert (record_v.encoded, record_v.label, record_v.filename) == (b'', -1, b'')


def test_boxes_are_mended():
    record_v = _parsed(build_example(b'', 2, 3, 1, 'x', 'x', boxes=[
        (.9, .8, .1, .2), (-1, .5, .5, 2), (float('nan'), 0, 1, 1), (2, 2, 3, 3), (.5, .5, .5, .5), (0, 0, 1, 1)]))
    np.testing.assert_allclose(record_v.bbox, [[[.1, .2, .9, .8], [0, .5, .5, 1], [0, 0, 1, 1]]])
    uneven = _parsed(_serialized(
        object__bbox__xmin=_feature(.1, .2), object__bbox__xmax=_feature(.3, .4),
        object__bbox__ymin=_feature(.5), object__bbox__ymax=_feature(.7, .8)))
    assert uneven.bbox.shape == (1, 0, 4)


def test_a_label_too_large_for_its_type_does_not_become_another():
    for label, read in ((2**32 + 1, 2**31 - 1), (-2**32 + 1, -1), (-7, -1)):
        assert _parsed(_serialized(class__label=_feature(label))).label == read
