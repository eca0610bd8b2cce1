"""How the report names devices, kinds of tensors and sizes."""

from inception_mg.placement import machine_of, task_name
from inception_mg.report.plan import ACTIVATIONS, GRADIENTS, INPUT, OTHER, STATISTICS, WEIGHTS

NAMES = {WEIGHTS: 'weights', GRADIENTS: 'gradients', ACTIVATIONS: 'activations', INPUT: 'images and labels',
         STATISTICS: 'batch statistics', OTHER: 'counters and rates'}


def device_name(device: str) -> str:
    """'/job:ps/task:0/device:CPU:0' -> 'CPU 0'."""
    return device.rpartition('/device:')[2].replace(':', ' ')


def full_name(device: str) -> str:
    """'ps 0, CPU 0'; without a cluster 'CPU 0'."""
    return f'{task_name(device)}, {device_name(device)}' if machine_of(device) else device_name(device)
