"""Training on towers, ps and workers: the networks of this package, or a model of your own.

    import inception_mg as mg

The names below are the public face; docs/your_model.md shows them at work. Each is looked up when it is asked for, so
that importing this package costs nothing and loads no TensorFlow; where TensorFlow is imported after it, and nobody
has set TF_CPP_MIN_LOG_LEVEL, only its errors are printed.
"""

import importlib
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

_HOMES = {
    'fit': 'dist.launch.fit',
    'classifier': 'inception_mg.training.classifier',
    'Task': 'inception_mg.training.task',
    'Inference': 'inception_mg.training.task',
    'OptimizerConfig': 'inception_mg.config',
    'TowerLoss': 'inception_mg.model.tower_loss',
    'Statistic': 'inception_mg.model.tower_loss',
    'Layers': 'inception_mg.model.layers',
    'UserError': 'inception_mg.errors',
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f'inception_mg has no {name!r}; its public names are {", ".join(__all__)}')
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
