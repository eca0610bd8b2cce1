# Sourced by quickstart.sh and test.sh: a virtual environment in .venv with the pinned packages.
# After make_venv, $PYTHON is its interpreter.

# make_venv fresh: always from scratch. make_venv: keeps one that is complete and up to date.
make_venv() {
    local base=${PYTHON3:-python3} wanted
    if ! "$base" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "$base is no Python 3.10 or newer with venv (on Debian: apt-get install python3-venv); set PYTHON3" >&2
        return 1
    fi
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    PYTHON=$PWD/.venv/bin/python
    if [ "${1:-}" != fresh ] && [ "$(cat .venv/complete 2>/dev/null)" = "$wanted" ]; then
        echo "using the virtual environment .venv"
        return
    fi
    echo "installing into .venv (TensorFlow with its CUDA libraries: 6 GB, a few minutes)"
    "$base" -m venv --clear .venv
    "$PYTHON" -m pip install --quiet --constraint constraints.txt --editable '.[test,demo]'
    echo "$wanted" > .venv/complete
}
