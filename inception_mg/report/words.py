"""How the report names devices, kinds of tensors and sizes."""

from inception_mg.report.plan import ACTIVATIONS, GRADIENTS, INPUT, OTHER, STATISTICS, WEIGHTS, task_name
from inception_mg.report.records import task_of

NAMES = {WEIGHTS: 'weights', GRADIENTS: 'gradients', ACTIVATIONS: 'activations', INPUT: 'images and labels',
         STATISTICS: 'batch statistics', OTHER: 'counters and rates'}


def size_text(size: float) -> str:
    """'109 MB', '2.1 MB', '17 kB': three digits at most."""
    for unit, factor in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if size >= factor:
            value = size / factor
            return f'{value:.0f} {unit}' if value >= 99.5 else f'{value:.3g} {unit}'
    return f'{size:.0f} B'


def device_name(device: str) -> str:
    """'/job:ps/task:0/device:CPU:0' -> 'CPU 0'."""
    return device.rpartition('/device:')[2].replace(':', ' ')


def full_name(device: str) -> str:
    """'ps 0, CPU 0'; without a cluster 'CPU 0'."""
    return f'{task_name(device)}, {device_name(device)}' if task_of(device) else device_name(device)
