"""The networks, each as one value: all that the program above needs to know of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception_mg.config import FREEZE_POINTS, IMAGE_SIZE, MINIMUM_IMAGE_SIZE, ModelConfig
from inception_mg.errors import FlagError
from inception_mg.model import inception_v3, resnet
from inception_mg.model.blocks import Outputs
from inception_mg.model.layers import Layers


class Network(NamedTuple):
    """A network and its facts.

    name: that of --model. title: for people.
    build: (images, num_outputs, layers, model, branches, stages, aux_head) -> Outputs, one copy of the network;
        see inception_v3. aux_head=False leaves out the auxiliary head, where there is one.
    default_image_size, minimum_image_size: pixels.
    block_cost: block -> multiply-adds of one image in millions, in the order of the network.
    freeze_points: the blocks of it that --freeze_below may name. scopes_below: such a block, or '' -> the variable
        scopes of all blocks before it.
    heads: the scopes whose shapes are the number of classes; fine-tuning begins them anew.
    aux_head: the scope of all that only training uses; '' where there is none.
    """

    name: str
    title: str
    build: Callable[..., Outputs]
    default_image_size: int
    minimum_image_size: int
    block_cost: dict[str, int]
    freeze_points: tuple[str, ...]
    scopes_below: Callable[[str], tuple[str, ...]]
    heads: tuple[str, ...]
    aux_head: str


def network(name: str) -> Network:
    """The network that --model names; FlagError for another name."""
    if name not in _NETWORKS:
        raise FlagError(f'--model={name} must be one of {", ".join(_NETWORKS)}')
    return _NETWORKS[name]


def _inception_v3(images: tf.Tensor, num_outputs: int, layers: Layers, model: ModelConfig,
                  branches: Sequence[str] = ('',), stages: Sequence[str] = ('',), aux_head: bool = True) -> Outputs:
    return inception_v3.inception_v3(images, num_outputs, layers, model.dropout_keep_prob, branches, stages, aux_head)


def _resnet_v1_50(images: tf.Tensor, num_outputs: int, layers: Layers, model: ModelConfig,
                  branches: Sequence[str] = ('',), stages: Sequence[str] = ('',), aux_head: bool = True) -> Outputs:
    return resnet.resnet_v1_50(images, num_outputs, layers, branches, stages)


_NETWORKS = {made.name: made for made in (
    Network('inception_v3', 'Inception v3', _inception_v3,
            IMAGE_SIZE['inception_v3'], MINIMUM_IMAGE_SIZE['inception_v3'],
            inception_v3.BLOCK_COST, FREEZE_POINTS['inception_v3'], inception_v3.scopes_below,
            ('logits/', 'aux_logits/FC/'), 'aux_logits/'),
    Network('resnet_v1_50', 'ResNet-50 v1.5', _resnet_v1_50,
            IMAGE_SIZE['resnet_v1_50'], MINIMUM_IMAGE_SIZE['resnet_v1_50'],
            resnet.BLOCK_COST, FREEZE_POINTS['resnet_v1_50'], resnet.scopes_below, ('logits/',), ''))}
