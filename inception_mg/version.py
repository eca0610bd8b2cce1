"""Which version of this project it is: what --version prints, and what is written beside checkpoints and models."""

import importlib.metadata
import platform

VERSION = '0.1.0'


def version_line() -> str:
    """This project's version, and those of what it runs on; TensorFlow is asked for without importing it."""
    try:
        tensorflow = f'TensorFlow {importlib.metadata.version("tensorflow")}'
    except importlib.metadata.PackageNotFoundError:
        tensorflow = 'no TensorFlow by that name'
    return f'inception-mg {VERSION}, {tensorflow}, Python {platform.python_version()}'
