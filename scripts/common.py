"""What every program shares: flags from the dataclasses of config.py, and errors as one line.

Importing this module silences TensorFlow's log (set TF_CPP_MIN_LOG_LEVEL yourself to see it), so
import it before anything that imports TensorFlow.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence

_ROOT = str(pathlib.Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(1, _ROOT)  # So that the programs run from a clone, installed or not.

from absl import app, flags  # noqa: E402

from inception_mg import checks, paths, tf_environment  # noqa: E402
from inception_mg.errors import UserError  # noqa: E402

os.environ.update(tf_environment.DEFAULTS | os.environ)

_DEFINE = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float,
           str: flags.DEFINE_string}


def define_flags(*configs: type, skip: Sequence[str] = (), only: Sequence[str] = (), **defaults) -> None:
    """Makes one flag per field of the given dataclasses.

    `skip` leaves fields out, `only` all others; a keyword argument replaces a field's default in this program.
    """
    for config in configs:
        for field in dataclasses.fields(config):
            if field.name in skip or only and field.name not in only:
                continue
            default = defaults.get(field.name, field.default)
            text = field.metadata['help']
            if field.metadata['choices']:
                flags.DEFINE_enum(field.name, default, field.metadata['choices'], text)
            else:
                _DEFINE[field.type](field.name, default, text)


def from_flags(config: type, **values):
    """Returns the dataclass filled from the flags of its fields; `values` take precedence.

    Raises FlagError for a number that is not finite or beyond 32 bits.
    """
    names = {field.name for field in dataclasses.fields(config)} & set(flags.FLAGS)
    filled = config(**{name: flags.FLAGS[name].value for name in names} | values)
    checks.check_numbers(filled)
    return filled


def given_flags() -> frozenset[str]:
    """Returns the names of the flags that are on the command line."""
    return frozenset(name for name in flags.FLAGS if flags.FLAGS[name].present)


def show(lines: Sequence[str]) -> None:
    """Prints lines, if there are any."""
    for line in lines:
        print(line)


def settle_paths() -> None:
    """Replaces the value of every flag that is a path by the path that it means; FlagError for one that cannot be
    used (see inception_mg/paths.py)."""
    for name in sorted(set(paths.FLAGS) & set(flags.FLAGS)):
        if isinstance(flags.FLAGS[name].value, str):
            flags.FLAGS[name].value = paths.settle(f'--{name}', flags.FLAGS[name].value, paths.FLAGS[name])


def run(main: Callable[..., int | None], argv: Sequence[str] | None = None, arguments: str = '') -> None:
    """Parses the command line, calls main() and exits with its code.

    arguments: what the program takes besides flags, such as 'IMAGE...'; then main(list of them) is called, and
    flags may also come after them. A UserError ends as one line on stderr and its own exit code; an unknown or
    malformed flag as one line and 2.
    """
    for stream in (sys.stdout, sys.stderr):  # Whatever a class or a file is called, a screen takes it: escaped.
        stream.reconfigure(errors='backslashreplace')
    sys.stdout.reconfigure(line_buffering=True)  # Status lines reach a log file when they are said.
    app.define_help_flags()
    flags.FLAGS.set_gnu_getopt(bool(arguments))
    try:
        rest = flags.FLAGS(list(argv if argv is not None else sys.argv))[1:]
    except flags.Error as error:
        _exit(' '.join(str(error).split()) + ' (--help lists the flags)', 2)
    if rest and not arguments:
        _exit(f'cannot use the argument {rest[0]!r}: flags look like --name=value', 2)
    try:
        settle_paths()
        code = main(*[rest] if arguments else []) or 0
    except UserError as error:
        _exit(str(error), error.exit_code)
    except KeyboardInterrupt:
        _exit('interrupted', 130)
    sys.stdout.flush()
    sys.exit(code)


def run_task(main: Callable[[], int | None]) -> None:
    """As `run`, for a task of a cluster: ends the process at once, because a TensorFlow server cannot be stopped, and
    the interpreter's own way out may wait for tasks that are gone."""
    from dist.server import leave_process
    code = 1
    try:
        run(main)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:
        traceback.print_exc()
    leave_process(code)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Hides what libraries write to stderr while they load; shows it if they fail to load.

    TensorFlow 2.21 writes four lines before it looks at TF_CPP_MIN_LOG_LEVEL.
    """
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(screen, hidden.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)
    # Deprecations of the graph-mode functions that this project is about; errors still show.
    logging.getLogger('tensorflow').setLevel(logging.ERROR)


def _exit(message: str, code: int) -> None:
    print(f'{pathlib.Path(sys.argv[0]).name}: {message}', file=sys.stderr)
    sys.exit(code)
