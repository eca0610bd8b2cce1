"""What the layers of Inception v3 are called elsewhere: in TF-slim, and by their order in Keras.

Our names are those of the 2016 program. The three programs make the same network, and the first two in the
same order; sources: inception/slim/inception_model.py (2016), research/slim/nets/inception_v3.py, and
keras.applications.inception_v3.
"""

import re
from typing import NamedTuple

# Branch -> the convolutions of it, as TF-slim ends their names. The 2016 program numbers them: Conv, Conv_1, ...
_Block = dict[str, str]
_GRID35: _Block = {'branch1x1': '0a_1x1', 'branch5x5': '0a_1x1 0b_5x5', 'branch3x3dbl': '0a_1x1 0b_3x3 0c_3x3',
                   'branch_pool': '0b_1x1'}
_TO_GRID17: _Block = {'branch3x3': '1a_1x1', 'branch3x3dbl': '0a_1x1 0b_3x3 1a_1x1', 'branch_pool': ''}
_GRID17: _Block = {'branch1x1': '0a_1x1', 'branch7x7': '0a_1x1 0b_1x7 0c_7x1',
                   'branch7x7dbl': '0a_1x1 0b_7x1 0c_1x7 0d_7x1 0e_1x7', 'branch_pool': '0b_1x1'}
_TO_GRID8: _Block = {'branch3x3': '0a_1x1 1a_3x3', 'branch7x7x3': '0a_1x1 0b_1x7 0c_7x1 1a_3x3', 'branch_pool': ''}
_GRID8: _Block = {'branch1x1': '0a_1x1', 'branch3x3': '0a_1x1 0b_1x3 0b_3x1',
                  'branch3x3dbl': '0a_1x1 0b_3x3 0c_1x3 0d_3x1', 'branch_pool': '0b_1x1'}

# Slim's slips in naming (a 3x3 called 1x1 above, and the two blocks spelled out here) are kept: they were released.
_BLOCKS: tuple[tuple[str, str, _Block], ...] = (
    ('mixed_35x35x256a', 'Mixed_5b', _GRID35),
    ('mixed_35x35x288a', 'Mixed_5c', _GRID35 | {'branch5x5': '0b_1x1 Conv_1_0c_5x5'}),
    ('mixed_35x35x288b', 'Mixed_5d', _GRID35),
    ('mixed_17x17x768a', 'Mixed_6a', _TO_GRID17),
    ('mixed_17x17x768b', 'Mixed_6b', _GRID17),
    ('mixed_17x17x768c', 'Mixed_6c', _GRID17),
    ('mixed_17x17x768d', 'Mixed_6d', _GRID17),
    ('mixed_17x17x768e', 'Mixed_6e', _GRID17),
    ('mixed_17x17x1280a', 'Mixed_7a', _TO_GRID8),
    ('mixed_8x8x2048a', 'Mixed_7b', _GRID8),
    ('mixed_8x8x2048b', 'Mixed_7c', _GRID8 | {'branch3x3': '0a_1x1 0b_1x3 0c_3x1'}))
_STEM = {'conv0': '1a_3x3', 'conv1': '2a_3x3', 'conv2': '2b_3x3', 'conv3': '3b_1x1', 'conv4': '4a_3x3'}
_AUX = {'aux_logits/proj': 'AuxLogits/Conv2d_1b_1x1', 'aux_logits/Conv': 'AuxLogits/Conv2d_2a_5x5'}
_FC = {'logits/logits': 'Logits/Conv2d_1c_1x1', 'aux_logits/FC': 'AuxLogits/Conv2d_2b_1x1'}
_FANS = ('branch3x3', 'branch3x3dbl')  # Of _GRID8: they end in a 1x3 and a 3x1 side by side.

LEAVES = ('weights', 'BatchNorm/beta', 'BatchNorm/moving_mean', 'BatchNorm/moving_variance')  # Of a convolution.
FC_LEAVES = ('weights', 'biases')
AUX_HEAD = 'aux_logits/'
SLIM = 'InceptionV3/'


class Conv(NamedTuple):
    """A convolution's scope here and in TF-slim; height: how many Keras layers lie between it and the end of its
    block, which is the order in which Keras keeps the layers of a block."""

    ours: str
    slim: str
    height: int


def _convs_of(block: str, slim_block: str, branches: _Block) -> list[Conv]:
    convs = []
    for number, (branch, endings) in enumerate(branches.items()):
        names = endings.split()
        fan = branch in _FANS and block.startswith('mixed_8x8')
        for index, ending in enumerate(names):
            # Each convolution is three layers in Keras (with normalisation and ReLU); a fan has a join of its own.
            steps = len(names) - index if not fan else max(len(names) - 1 - index, 1)
            ours = f'{block}/{branch}/Conv' + (f'_{index}' if index else '')
            ending = ending if ending.startswith('Conv') else f'Conv2d_{ending}'
            convs.append(Conv(ours, f'{SLIM}{slim_block}/Branch_{number}/{ending}', 3 * steps + fan))
    return convs


_STEM_CONVS = [Conv(ours, f'{SLIM}Conv2d_{ending}', 0) for ours, ending in _STEM.items()]
_BLOCK_CONVS = [_convs_of(*block) for block in _BLOCKS]
CONVS = [*_STEM_CONVS, *(conv for block in _BLOCK_CONVS for conv in block)]  # In the order of creation; no head.
KERAS_ORDER = [conv.ours for conv in [*_STEM_CONVS, *(
    conv for block in _BLOCK_CONVS for conv in sorted(block, key=lambda conv: -conv.height))]]

_SLIM_SCOPES = {conv.slim: conv.ours for conv in CONVS} | {SLIM + slim: ours for ours, slim in (_AUX | _FC).items()}


def model_names() -> list[str]:
    """All 388 variables of the network: those of 96 convolutions and two fully connected layers."""
    convs = [conv.ours for conv in CONVS] + list(_AUX)
    return [f'{scope}/{leaf}' for scope in convs for leaf in LEAVES] + [
        f'{scope}/{leaf}' for scope in _FC for leaf in FC_LEAVES]


def from_slim(name: str) -> str | None:
    """Our name of TF-slim's variable `name`, or None if the network has no such variable.

    The auxiliary head's second convolution is called after its kernel, which shrinks with the images.
    """
    scope, _, leaf = re.sub(r'(AuxLogits/Conv2d_2a)_\dx\d/', r'\1_5x5/', name).rpartition('/')
    if scope.endswith('/BatchNorm'):
        scope, leaf = scope.removesuffix('/BatchNorm'), f'BatchNorm/{leaf}'
    ours = _SLIM_SCOPES.get(scope)
    leaves = FC_LEAVES if ours in _FC else LEAVES
    return f'{ours}/{leaf}' if ours and leaf in leaves else None
