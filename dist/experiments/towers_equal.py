"""Claim 1: N towers, each with its part of the batch, make the step of one device with the whole batch."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from dist.experiments import figures
from dist.experiments.random_images import random_images
from dist.experiments.result import Request, Result, Table
from dist.experiments.small_model import SIZE, small_loss
from inception_mg.config import DeviceConfig, ModelConfig
from inception_mg.data.progress import progress
from inception_mg.model.losses import TowerLoss, classification_loss
from inception_mg.placement import multi_gpu
from inception_mg.training.devices import session_config
from inception_mg.training.task import Task
from inception_mg.training.train_step import build_train_step

v1 = tf.compat.v1
BATCH, NUM_OUTPUTS = 16, 10
INCEPTION, INCEPTION_SIZE = ModelConfig(width=0.05, dropout_keep_prob=1.0, batch_norm_decay=0.5), 75
CLAIM = ('N towers that average their gradients make the same step as one device with the whole batch, except that '
         'batch normalisation in training sees only the images of its own tower.')


class Network(NamedTuple):
    """words: its name. size: of its images."""

    words: str
    size: int
    build: Callable[[tf.Tensor, tf.Tensor, bool], TowerLoss]  # (images, labels, is_training)


SMALL = Network('three convolutions', SIZE, lambda images, labels, training: small_loss(
    images, labels, NUM_OUTPUTS, training))
NARROW_INCEPTION = Network('Inception v3 of width 0.05', INCEPTION_SIZE, lambda images, labels, training: (
    classification_loss(images, labels, NUM_OUTPUTS, INCEPTION, is_training=training)))


class Run(NamedTuple):
    """What steps with N towers left. losses: [steps]. gradients: of the first step. weights: after the last, and
    batch-norm statistics. By variable name."""

    losses: np.ndarray
    gradients: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]


def run(request: Request) -> Result:
    """The same images and first weights on 1, 2, 4 and 8 CPU devices."""
    network, steps, counts = (NARROW_INCEPTION if request.full else SMALL), 10, (1, 2, 4, 8)
    runs: dict[bool, dict[int, Run]] = {True: {}, False: {}}
    # All begin with these weights, and with statistics that fit to them.
    start = train(network, 1, True, 5, {}).weights
    todo = [(training, towers) for training in (False, True) for towers in counts]
    for training, towers in progress(todo, len(todo), 'towers_equal', 'runs'):
        runs[training][towers] = train(network, towers, training, steps, start)
    return summarise(runs, steps, network.words)


def train(network: Network, towers: int, training: bool, steps: int, start: dict[str, np.ndarray]) -> Run:
    """Makes `steps` steps with so many towers, from the values of `start` by name, or initial ones where it has none.

    training: normalise by the batch, else by the moving statistics.
    """
    placement = multi_gpu([f'/device:CPU:{number}' for number in range(towers)])
    with tf.Graph().as_default():
        step = build_train_step(placement, Task(random_images(network.size, NUM_OUTPUTS),
                                                lambda batch, tower: network.build(*batch, training), BATCH, BATCH))
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        begin = {variables[name].initializer.inputs[1]: value for name, value in start.items()}
        with v1.Session(config=session_config(DeviceConfig(), towers, on_gpus=False)) as session:
            session.run(v1.global_variables_initializer(), begin)
            session.run(step.start_input)
            losses, first = [], {}
            for _ in range(steps):
                loss_v, gradients_v, _ = session.run([step.loss, [g for g, _ in step.gradients], step.train_op])
                losses.append(loss_v)
                first = first or {v.op.name: g for (_, v), g in zip(step.gradients, gradients_v, strict=True)}
            weights = {name: variable for name, variable in variables.items()
                       if name in first or name.endswith(('moving_mean', 'moving_variance'))}
            return Run(np.array(losses), first, session.run(weights))


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of any two numbers, as a share of the largest number."""
    largest = max(float(np.abs(value).max()) for value in one.values())
    return max(float(np.abs(one[name] - other[name]).max()) for name in one) / largest


def summarise(runs: dict[bool, dict[int, Run]], steps: int, network: str) -> Result:
    """One row per way of normalising and number of towers, each compared with one device."""
    rows = []
    for training, words in ((False, 'moving statistics'), (True, 'its own images')):
        one = runs[training][1]
        for towers, other in list(runs[training].items())[1:]:
            weights = {name: one.weights[name] for name in one.gradients}
            rows.append((words, towers, float(np.abs(other.losses / one.losses - 1).max()),
                         difference(one.gradients, other.gradients), difference(weights, other.weights)))
    figure, (axis,) = figures.panels(
        [f'N towers against one device, {BATCH} images per step'],
        [('towers', f'largest relative difference in {steps} steps')], f'All real: {network}, float32',
        width=7.4, height=3.8)
    for words, colour in (('moving statistics', figures.BLUE), ('its own images', figures.RED)):
        part = [row for row in rows if row[0] == words]
        for column, what, style in ((2, 'losses', ':'), (3, 'gradients', '--'), (4, 'weights', '-')):
            axis.plot([row[1] for row in part], [max(row[column], 1e-9) for row in part], color=colour, linestyle=style,
                      marker='o', markersize=4.5, label=f'{what}; normalised by {words}')
    axis.set_yscale('log')
    figures.doubling(axis, [row[1] for row in rows if row[0] == words])
    axis.axhline(2.0 ** -23, color=figures.GREY, linewidth=1, linestyle='-.', label='float32 rounding of one number')
    figures.legend(axis, loc='center left', bbox_to_anchor=(1.0, 0.5))
    exact = [row for row in rows if row[0] == 'moving statistics']
    own = [row for row in rows if row[0] == 'its own images']
    return Result(CLAIM, [Table(('normalised by', 'towers', 'losses', 'gradients', 'weights'), rows,
                                f'{network[0].upper()}{network[1:]}: largest relative difference from one device in '
                                f'{steps} steps')], [
        f'With fixed statistics the losses of {steps} steps differ by at most {max(row[2] for row in exact):.1e} and '
        f'the weights by {max(row[4] for row in exact):.1e}: the order of float32 sums.',
        f'When each tower normalises by its own {BATCH // own[-1][1]} to {BATCH} images the losses differ by up to '
        f'{max(row[2] for row in own):.1%}: the one thing that several towers change, and the reason to give each of '
        'them enough images.'], figure)
