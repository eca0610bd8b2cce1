"""Shared by all tests: quiet TensorFlow, CPU only unless asked, and the repository on the path."""

import os
import pathlib
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

ROOT = pathlib.Path(__file__).resolve().parent.parent
for path in (ROOT, ROOT / 'scripts'):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
