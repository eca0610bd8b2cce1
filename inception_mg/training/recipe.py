"""What the settings of a training say: the optimizer, the learning rate over the epochs of images consumed, the end."""

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf

from inception_mg.config import OptimizerConfig, RunConfig
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.training.clipping import ClippedOptimizer

v1 = tf.compat.v1


def build_learning_rate(config: OptimizerConfig, global_step: tf.Variable, images_per_update: int,
                        num_examples: int) -> tf.Tensor:
    """The rate of the update that global_step counts next, a float32 scalar beside it.

    images_per_update: images whose gradients enter one update (the towers' of one machine, and in
    synchronous cluster training those of all aggregated workers). The staircase is that of inception_train.py: 0.1 x
    0.16 every 30 epochs. The cosine falls from the initial rate to 0 at num_epochs (Loshchilov and Hutter, "SGDR",
    arXiv:1608.03983). In the first warmup_epochs the rate grows to that in proportion to the images (Goyal et al.,
    "Accurate, Large Minibatch SGD", arXiv:1706.02677).
    """
    updates_per_epoch = num_examples / images_per_update
    with tf.device(global_step.device):
        if config.schedule == 'staircase':
            decay_steps = max(1, int(updates_per_epoch * config.num_epochs_per_decay))
            rate = v1.train.exponential_decay(config.initial_learning_rate, global_step, decay_steps,
                                              config.learning_rate_decay_factor, staircase=True)
        elif config.schedule == 'cosine':
            rate = v1.train.cosine_decay(config.initial_learning_rate, global_step,
                                         updates_of(config.num_epochs, num_examples, images_per_update))
        else:
            rate = tf.constant(config.initial_learning_rate)
        if not config.warmup_epochs:
            return rate
        made = tf.cast(global_step.read_value() + 1, tf.float32)
        return rate * tf.minimum(1.0, made / max(1.0, config.warmup_epochs * updates_per_epoch))


def build_optimizer(config: OptimizerConfig, learning_rate: tf.Tensor, operations: Operations = PLAIN,
                    make: Callable[[OptimizerConfig, tf.Tensor], v1.train.Optimizer] | None = None
                    ) -> v1.train.Optimizer | ClippedOptimizer:
    """The optimizer of the settings, or the one that `make` returns; clipped if they say so.

    By default RMSProp as inception_train.py has it: decay 0.9, momentum 0.9, epsilon 1.
    """
    if make:
        optimizer = make(config, learning_rate)
    elif config.optimizer == 'rmsprop':
        optimizer = (operations.make_optimizer or v1.train.RMSPropOptimizer)(
            learning_rate, config.rmsprop_decay, config.rmsprop_momentum, config.rmsprop_epsilon)
    elif config.optimizer == 'adam':
        optimizer = v1.train.AdamOptimizer(learning_rate, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
    elif config.optimizer == 'momentum':
        optimizer = v1.train.MomentumOptimizer(learning_rate, config.momentum)
    else:
        optimizer = v1.train.GradientDescentOptimizer(learning_rate)
    return ClippedOptimizer(optimizer, config.clip_norm) if config.clip_norm else optimizer


def updates_of(epochs: float, num_examples: int, images_per_update: int) -> int:
    """The updates in which so many epochs of images are consumed, at least 1."""
    return max(1, math.ceil(epochs * num_examples / images_per_update - 1e-6))


def with_epochs(run: RunConfig, config: OptimizerConfig, num_examples: int, images_per_update: int) -> RunConfig:
    """run with max_steps no later than the end of config.num_epochs."""
    if not config.num_epochs:
        return run
    last = updates_of(config.num_epochs, num_examples, images_per_update)
    return dataclasses.replace(run, max_steps=min(run.max_steps, last))


def describe_schedule(config: OptimizerConfig, num_examples: int, images_per_update: int) -> str:
    """In words, for the start lines."""
    said = f'learning rate {config.initial_learning_rate:g}'
    if config.schedule == 'staircase':
        steps = int(num_examples / images_per_update * config.num_epochs_per_decay)
        said += (f' x {config.learning_rate_decay_factor:g} every {config.num_epochs_per_decay:g} epochs ({steps} '
                 'steps)')
    elif config.schedule == 'cosine':
        said += (f', cosine to 0 at epoch {config.num_epochs:g} (step '
                 f'{updates_of(config.num_epochs, num_examples, images_per_update)})')
    else:
        said += ', constant'
    if config.warmup_epochs:
        said += f'; rising in the first {config.warmup_epochs:g} epochs'
    return f'{config.optimizer}, {said}' + (f'; gradients clipped to a norm of {config.clip_norm:g}'
                                            if config.clip_norm else '')
