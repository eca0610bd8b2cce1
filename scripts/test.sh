#!/usr/bin/env bash
# Passes the tests on a fresh machine: makes .venv from scratch, installs, and runs all tests but those
# that need a GPU. Arguments go to pytest: scripts/test.sh -k golden
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh
make_venv fresh
"$PYTHON" -m ruff check .
"$PYTHON" -m pytest -m 'not gpu' "$@"
