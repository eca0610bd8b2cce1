#!/usr/bin/env bash
# Passes the tests on a fresh machine: makes .venv from scratch, installs, and runs all tests but those
# that need a GPU. Arguments go to pytest: scripts/test.sh -k golden
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh
make_venv fresh
"$PYTHON" -m ruff check . dist  # A folder of that name is left out unless it is named.

# Two files at a time: first the tests without clusters, then the clusters, whose tasks mostly wait, those on machines
# of their own (network namespaces) included.
run() {
    local code=0
    "$PYTHON" -m pytest "$@" || code=$?
    [ $code = 0 ] || [ $code = 5 ]  # 5: the arguments selected no test of this ring.
}
run -m 'not gpu and not cluster and not laboratory' -n 2 --dist loadfile "$@"
run -m '(cluster or laboratory) and not gpu' -n 2 --dist loadfile "$@"
