"""The devices of this machine, and the placement that the flags ask for on them."""

import pathlib
from typing import NamedTuple

import tensorflow as tf

from inception_mg import placement as placements
from inception_mg.config import DeviceConfig
from inception_mg.errors import FlagError
from inception_mg.fast.choice import operations_for
from inception_mg.fast.operations import PLAIN, Operations
from inception_mg.placement import Placement

v1 = tf.compat.v1


class Machine(NamedTuple):
    """placement: the towers on this machine. session_config: makes its devices. notes: lines that
    the user should read. operations: the faster forms that its TensorFlow has."""

    placement: Placement
    session_config: v1.ConfigProto
    notes: list[str]
    operations: Operations = PLAIN


def local_machine(config: DeviceConfig) -> Machine:
    """Finds this machine's devices and places the towers that the flags ask for.

    Raises FlagError when there are fewer GPUs than asked for, or when they cannot be dealt to towers.
    """
    gpus = tf.config.list_physical_devices('GPU')
    count = config.num_gpus or (config.split_devices if config.split_model else 1)
    _check(config, count, len(gpus))
    notes = []
    if gpus:
        devices = [f'/device:GPU:{number}' for number in range(count)]
    else:
        devices = [f'/device:CPU:{number}' for number in range(count)]
        if config.num_gpus:
            notes.append(f'no GPU on this machine: {count} CPU device{"s" * (count > 1)} instead, which share its '
                         'cores (for trying things out; more of them are not faster)')
    if config.split_model:
        size = config.split_devices
        groups = [devices[start:start + size] for start in range(0, count, size)]
        placement = placements.split_model(groups, config.split_model)
    else:
        placement = placements.multi_gpu(devices)
    operations = operations_for(config.plain_operations, notes.append)
    return Machine(placement, session_config(config, count, bool(gpus)), notes, operations)


def session_config(config: DeviceConfig, count: int, on_gpus: bool) -> v1.ConfigProto:
    """The ConfigProto that makes `count` GPUs, and no others, or `count` CPU devices.

    Soft placement is on with GPUs only: a few operations have no GPU kernel. On CPU devices an
    operation runs where the placement says or the session fails.
    """
    proto = v1.ConfigProto(allow_soft_placement=on_gpus,
                           log_device_placement=config.log_device_placement)
    if on_gpus:
        proto.gpu_options.visible_device_list = ','.join(str(number) for number in range(count))
        proto.gpu_options.allow_growth = not config.gpu_memory_fraction
        proto.gpu_options.per_process_gpu_memory_fraction = config.gpu_memory_fraction
    else:
        # Grappler gains a training step on CPUs nothing that could be measured and costs up to ten
        # seconds per session; on GPUs it chooses the layout of the convolutions.
        proto.graph_options.rewrite_options.disable_meta_optimizer = True
        proto.device_count['CPU'] = count
        proto.device_count['GPU'] = 0
    return proto


def bfloat16_hint(compute_dtype: str) -> str:
    """Returns a line for a user who computes in float32 where bfloat16 is much faster, else ''."""
    if compute_dtype != 'float32':
        return ''
    gpus = tf.config.list_physical_devices('GPU')
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        fast = details.get('compute_capability', (0, 0)) >= (8, 0)
        what = details.get('device_name', 'this GPU')
    else:
        fast, what = _cpu_has_amx(), 'this CPU (it has AMX)'
    return f'--compute_dtype=bfloat16 is several times faster on {what}' if fast else ''


def _check(config: DeviceConfig, count: int, gpus: int) -> None:
    if config.num_gpus < 0:
        raise FlagError(f'--num_gpus={config.num_gpus} must be at least 0')
    if not 0 <= config.gpu_memory_fraction <= 1:
        raise FlagError(f'--gpu_memory_fraction={config.gpu_memory_fraction:g} must be from 0 to 1')
    if config.split_model:
        if config.split_devices < 2:
            raise FlagError(f'--split_devices={config.split_devices}: a split needs at least 2 devices')
        if count % config.split_devices:
            raise FlagError(f'--num_gpus={count} is no multiple of --split_devices={config.split_devices}, '
                            'the devices of one tower')
    if gpus and count > gpus:
        raise FlagError(f'--num_gpus={count}, but this machine shows {gpus} GPU{"s" * (gpus > 1)} '
                        '(CUDA_VISIBLE_DEVICES limits which)')


def _cpu_has_amx() -> bool:
    try:
        return 'amx_bf16' in pathlib.Path('/proc/cpuinfo').read_text()
    except OSError:
        return False
