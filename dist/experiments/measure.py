"""What this machine does: the weights of Inception v3 and how ps share them, and the time of a training step."""

import os
import statistics
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

from dist.benchmark.contenders import NUM_OUTPUTS, build_step
from inception_mg.config import DataConfig, DeviceConfig, ModelConfig, OptimizerConfig
from inception_mg.dealing import largest_first
from inception_mg.fast.choice import fast_operations
from inception_mg.model.losses import classification_loss
from inception_mg.placement import bytes_of, one_device
from inception_mg.training.devices import session_config
from inception_mg.training.ps_strategy import trained_specs
from inception_mg.training.task import Task

v1 = tf.compat.v1


def trained_variables(build_tower: Callable[[], object]) -> dict[str, int]:
    """Name -> bytes of what a network trains, in its order, from a graph that is thrown away."""
    specs = trained_specs(Task(None, lambda batch, tower: build_tower(), 1, 1), (), one_device().towers[0])
    return {name: bytes_of(spec) for name, spec in specs.items()}


def build_inception(size: int = 299) -> None:
    """A tower of Inception v3, for its variables alone."""
    classification_loss(v1.placeholder(tf.float32, [1, size, size, 3]), v1.placeholder(tf.int32, [1]), NUM_OUTPUTS,
                        ModelConfig())


def weights_per_ps(counts: Iterable[int], build_tower: Callable[[], object] = build_inception) -> dict[int, list[int]]:
    """Number of ps -> bytes of trained weights on each, as the ps strategy deals the variables of a network.

    So many bytes a worker pulls from that ps in a step, and as many it pushes.
    """
    sizes = list(trained_variables(build_tower).values())
    found = {count: [0] * count for count in counts}
    for count, loads in found.items():
        for size, ps in zip(sizes, largest_first(sizes, count), strict=True):
            loads[ps] += size
    return found


def step_seconds_here(batch_size: int, steps: int, size: int = 299) -> float:
    """Median time of a training step of Inception v3 on this machine, after two steps.

    It is the processor time of this process, spread over all cores, so that other programs do not count.
    """
    data = DataConfig(batch_size=batch_size, image_size=size)
    with tf.Graph().as_default():
        step = build_step(one_device(), data, ModelConfig(), OptimizerConfig(), fast_operations()[0])
        with v1.Session(config=session_config(DeviceConfig(), 1, on_gpus=False)) as session:
            session.run(v1.global_variables_initializer())
            session.run(step.start_input)
            seconds = []
            for _ in range(steps + 2):
                begun = time.process_time()
                session.run(step.train_op)
                seconds.append(time.process_time() - begun)
    return statistics.median(seconds[2:]) / (os.cpu_count() or 1)
