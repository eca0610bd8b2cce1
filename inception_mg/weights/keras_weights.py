"""Weights of keras.applications.InceptionV3, read with h5py; Keras itself is not needed.

Three layouts: `.weights.h5` (layers/conv2d_12/vars/0), `.keras` (a zip that holds one), and the `.h5` of earlier Keras
(attributes layer_names and weight_names), as the released files are. Layers are taken by their order, as Keras
itself does, because their numbers depend on what else was made before.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import h5py
import numpy as np

from inception_mg.errors import UserError
from inception_mg.reasons import reason_of
from inception_mg.weights.names import KERAS_ORDER

BATCH_NORM_EPSILON = 0.001
# A Keras model knows no background, our label 0: here its weights are 0 and its bias is this. Its probability is
# then 0 in float32 beside any other class, and label smoothing over 1001 outputs adds 0.01 to the loss, not more.
BACKGROUND_BIAS = -100.0
# The name of a Keras model whose output 0 is the background: one that was exported from here.
WITH_BACKGROUND = 'inception_v3_with_background'
# What the variables of a layer are, by its class, in the order of the newer layouts.
_VARIABLES = {'conv2d': ('kernel', 'bias'), 'dense': ('kernel', 'bias'),
              'batch_normalization': ('gamma', 'beta', 'moving_mean', 'moving_variance')}


class KerasModel(NamedTuple):
    """values: our name -> float32 array. unknown: weights that the network does not have. other_heads: fully
    connected layers that are not its one head. notes: what was changed on the way."""

    values: dict[str, np.ndarray]
    unknown: list[str]
    other_heads: list[str]
    notes: list[str]


class _Weight(NamedTuple):
    """One array of a file: of which layer, and which of its variables (kernel, beta, ...)."""

    layer: str
    kind: str
    value: h5py.Dataset


def is_keras_file(path: str) -> bool:
    """Whether `path` is an HDF5 or a zip file, by its first bytes."""
    try:
        with open(path, 'rb') as file:
            start = file.read(8)
    except OSError:
        return False
    return start == b'\x89HDF\r\n\x1a\n' or start.startswith(b'PK\x03\x04')


def read_keras(path: str) -> KerasModel:
    """Reads a file that is_keras_file. Raises UserError for one that is not InceptionV3 or cannot be read."""
    settings = {}
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                settings = json.loads(archive.read('config.json'))
                _check_epsilon(path, settings)
                source = io.BytesIO(archive.read('model.weights.h5'))
        else:
            source = path
        with h5py.File(source, 'r') as file:
            settings = settings or json.loads(file.attrs.get('model_config', '{}'))
            _check_epsilon(path, settings)
            named = settings.get('config', {}).get('name') if isinstance(settings, dict) else ''
            return _model(path, list(_weights_of(file)), named == WITH_BACKGROUND)
    except (OSError, KeyError, zipfile.BadZipFile, json.JSONDecodeError) as error:
        raise UserError(f'cannot read {path} as a Keras file: {reason_of(error)}') from None


def _check_epsilon(path: str, config) -> None:
    """Raises UserError if a model's configuration has another epsilon of batch normalisation than ours."""
    if isinstance(config, dict) and config.get('class_name') == 'BatchNormalization':
        name, epsilon = config['config']['name'], config['config']['epsilon']
        if abs(epsilon - BATCH_NORM_EPSILON) > 1e-9:
            raise UserError(f'{path}: {name} has epsilon {epsilon:g}, Inception v3 has {BATCH_NORM_EPSILON:g}')
    for part in config.values() if isinstance(config, dict) else config if isinstance(config, list) else ():
        _check_epsilon(path, part)


def _weights_of(file: h5py.File) -> Iterator[_Weight]:
    """All arrays of the model, those of one kind in the order of its layers."""
    group = file.get('model_weights', file)
    layers = _strings(group, 'layer_names')
    if not layers:
        yield from _numbered_weights(file)
    for layer in layers:
        for name in _strings(group[layer], 'weight_names'):
            owner, _, kind = name.removesuffix(':0').rpartition('/')
            yield _Weight(owner, kind, group[layer][name])


def _strings(group: h5py.Group, name: str) -> list[str]:
    """A list among the attributes; a long one is split over name0, name1, ..."""
    chunks = [group.attrs[name]] if name in group.attrs else []
    while f'{name}{len(chunks)}' in group.attrs:
        chunks.append(group.attrs[f'{name}{len(chunks)}'])
    return [text.decode() if isinstance(text, bytes) else text for chunk in chunks for text in chunk]


def _numbered_weights(file: h5py.File) -> Iterator[_Weight]:
    """Of .weights.h5: the layers of one class are numbered in the model's order, conv2d, conv2d_1, ..."""
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if name.endswith('/vars') and len(item) else None)

    def parts(name: str) -> tuple[str, str, int]:
        container, _, layer = name.removesuffix('/vars').rpartition('/')
        match = re.fullmatch(r'(.*?)(?:_(\d+))?', layer)
        return container, match[1], int(match[2] or 0)

    for name in sorted(found, key=parts):
        if name.startswith('optimizer/') or parts(name)[1] == 'seed_generator':
            continue
        values = [file[name][number] for number in sorted(file[name], key=int)]
        kinds = _VARIABLES.get(parts(name)[1], ())
        if len(values) == len(kinds) - 1 and kinds[0] == 'gamma':
            kinds = kinds[1:]  # scale=False, as InceptionV3 has it.
        for number, value in enumerate(values):
            yield _Weight(name, kinds[number] if number < len(kinds) else str(number), value)


def _model(path: str, weights: Sequence[_Weight], with_background: bool) -> KerasModel:
    kinds: dict[str, list[_Weight]] = {}
    for weight in weights:
        kind = 'dense' if weight.kind == 'kernel' and weight.value.ndim == 2 else weight.kind
        kinds.setdefault(kind, []).append(weight)
    values = {}
    for leaf, kind in (('weights', 'kernel'), *((f'BatchNorm/{kind}', kind) for kind in (
            'beta', 'moving_mean', 'moving_variance'))):
        found = kinds.pop(kind, [])
        if len(found) != len(KERAS_ORDER):
            raise UserError(f'{path} has {len(found)} layers with a {kind}, '
                            f'InceptionV3 in Keras has {len(KERAS_ORDER)}')
        values |= {f'{scope}/{leaf}': _array(weight) for scope, weight in zip(KERAS_ORDER, found, strict=True)}
    gammas = kinds.pop('gamma', [])
    ones = [weight for weight in gammas if (_array(weight) == 1).all()]
    notes = [f'{len(ones)} factors of batch normalisation that are all 1 left out'] if ones else []
    dense, biases = kinds.pop('dense', []), {weight.layer: weight for weight in kinds.pop('bias', [])}
    if len(dense) == 1:
        head_biases = biases.pop(dense[0].layer, None)
        values |= _head(_array(dense[0]), _array(head_biases) if head_biases else None, with_background)
        notes.append('output 0 is the background: it was exported by these programs' if with_background else
                     'the background, which Keras does not have, put in as output 0 '
                     f'(weights 0, bias {BACKGROUND_BIAS:g})')
    heads = {weight.layer for weight in dense} if len(dense) > 1 else set()
    rest = [weight for found in kinds.values() for weight in found]
    unknown = [weight for weight in [*gammas, *biases.values(), *rest] if weight not in ones]
    return KerasModel(values, [f'{weight.layer}/{weight.kind}' for weight in unknown if weight.layer not in heads],
                      sorted(heads), notes)


def _head(kernel: np.ndarray, biases: np.ndarray | None, with_background: bool) -> dict[str, np.ndarray]:
    """[features, classes] -> our logits, with the background as output 0."""
    biases = np.zeros(kernel.shape[1], np.float32) if biases is None else biases
    if with_background:
        return {'logits/logits/weights': kernel, 'logits/logits/biases': biases}
    return {'logits/logits/weights': np.concatenate([np.zeros_like(kernel[:, :1]), kernel], axis=1),
            'logits/logits/biases': np.concatenate([[np.float32(BACKGROUND_BIAS)], biases])}


def _array(weight: _Weight) -> np.ndarray:
    return np.asarray(weight.value, np.float32)
