"""The contenders themselves, with a narrow network: they do the work that they count."""

import os

import numpy as np
import pytest
import tensorflow as tf

from dist.benchmark import contenders, groups, peers
from dist.benchmark.race import race, starting
from dist.benchmark.flops import count_flops
from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig
from inception_mg.placement import one_device

DATA, MODEL = DataConfig(image_size=75, batch_size=2), ModelConfig(width=0.05)


def test_a_step_computes_three_times_what_inference_does_but_for_the_first_layer_and_the_auxiliary_head():
    """Both gradients of a product cost what it does itself; images need none."""
    with tf.Graph().as_default() as step:
        contenders.build_step(one_device('/device:CPU:0'), DATA, MODEL, OptimizerConfig())
    inference = contenders.inference(DATA, MODEL, DeviceConfig())
    inference.run(1)
    assert inference.info['unit'] == 'images' and inference.info['amount'] == 2
    assert 2.9 < count_flops(step) / inference.info['flops'] < 3.2


def test_limits_say_how_many_operations_a_step_has():
    product = contenders.matrix_product(ModelConfig(compute_dtype='bfloat16'), DeviceConfig(), side=64)
    product.run(1)
    assert product.info == {'unit': 'flops', 'amount': 2 * 2 * 64**3}
    convolutions = contenders.convolutions(DATA, MODEL, DeviceConfig())
    convolutions.run(1)
    assert convolutions.info['unit'] == 'flops' and convolutions.info['amount'] % 6 == 0  # Three times 2 x products.


def test_input_here_and_in_the_order_of_2016_samples_the_same_crops(three_classes):
    data = DataConfig(data_dir=three_classes, image_size=75, batch_size=2)
    drawn = []
    for make in (contenders.input_alone, peers.input_2016):
        graph = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contenders, '_repeat', lambda session, fetches, graph=graph: (
                graph.append(session.graph.as_graph_def()) or (lambda count: session.run(fetches))))
            contender = make(data)
        contender.run(1)
        assert contender.info == {'unit': 'images', 'amount': 2, 'least': 24}
        drawn.append(crop_attributes(graph[0]))
    assert drawn[0] == drawn[1]


def crop_attributes(graph_def) -> dict:
    """How crops are sampled, in the functions of tf.data too; alike for JPEGs and for other kinds."""
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    crops = [node for node in nodes if 'SampleDistortedBoundingBox' in node.op]
    found = [{name: str(crop.attr[name]) for name in (
        'aspect_ratio_range', 'area_range', 'max_attempts', 'use_image_if_no_bounding_boxes')} for crop in crops]
    assert found and all(one == found[0] for one in found)
    return found[0]


@pytest.mark.cluster
def test_the_null_step_counts_the_weights_down_and_up(tmp_path):
    from dist.benchmark.tasks import trainable_shapes
    failed = {}
    settings = ['--width=0.05', '--image_size=75', '--batch_size=2']
    with starting([groups.make_racer('null_step', settings)], tmp_path, os.environ,
                  failed.__setitem__) as ready:
        laps = race(ready, 1, 0.05, failed.__setitem__)
    assert not failed
    weights = sum(np.prod(shape) for shape in trainable_shapes(DATA, MODEL).values())
    assert ready[0].info == {'unit': 'bytes', 'amount': 2 * weights * tf.float32.size}
    assert laps[0]['null_step'].amount % ready[0].info['amount'] == 0
