"""What every program shares: flags from the dataclasses of config.py, and errors as one line.

Importing this module silences TensorFlow's log (set TF_CPP_MIN_LOG_LEVEL yourself to see it), so
import it before anything that imports TensorFlow.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import re
import signal
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence

_ROOT = str(pathlib.Path(__file__).resolve().parent.parent)
if _ROOT not in sys.path:
    sys.path.insert(1, _ROOT)  # So that the programs run from a clone, installed or not.


def _exit(message: str, code: int) -> None:
    # One line, whatever the value of a flag holds that it quotes.
    line = ''.join(sign if sign.isprintable() else sign.encode('unicode_escape').decode() for sign in message)
    print(f'{pathlib.Path(sys.argv[0]).name}: {line}', file=sys.stderr)
    sys.exit(code)


def _require_packages(names: Sequence[str] = ('absl', 'numpy', 'tensorflow')) -> None:
    """Ends with one line if this Python is not one that the project was installed into."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        theirs = pathlib.Path(_ROOT, '.venv', 'bin', 'python')
        remedy = f'take {theirs}, or first: source {theirs.parent / "activate"}' if theirs.exists() else \
            f'scripts/quickstart.sh in {_ROOT} installs them into .venv; then: source .venv/bin/activate'
        _exit(f'{sys.executable} has no module {", ".join(missing)}: {remedy}', 1)


_require_packages()

from absl import app, flags  # noqa: E402

from inception_mg import checks, config, paths, remote, tf_environment  # noqa: E402
from inception_mg.errors import EXIT_FAILED, EXIT_FLAGS, EXIT_SIGINT, UserError, told  # noqa: E402
from inception_mg.version import version_line  # noqa: E402

os.environ.update(tf_environment.DEFAULTS | os.environ)

_DEFINE = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float,
           str: flags.DEFINE_string}
_INDENT = {'initial_indent': '      ', 'subsequent_indent': '      '}
_GROUPS: dict[str, list[str]] = {}  # Heading of --help -> flags of define_flags, in order.


def define_flags(*configs: type, skip: Sequence[str] = (), only: Sequence[str] = (), **defaults) -> None:
    """Makes one flag per field of the given dataclasses.

    `skip` leaves fields out, `only` all others; a keyword argument replaces a field's default in this program.
    """
    for part in configs:
        heading = ' '.join(re.findall('[A-Z][a-z]*', part.__name__.removesuffix('Config'))).lower()
        for field in dataclasses.fields(part):
            if field.name in skip or only and field.name not in only:
                continue
            _GROUPS.setdefault(heading, []).append(field.name)
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


def data_and_model() -> tuple[config.DataConfig, config.ModelConfig]:
    """The two from the flags; without --image_size the images are as large as the network is made for."""
    data, model = from_flags(config.DataConfig), from_flags(config.ModelConfig)
    if 'image_size' not in given_flags():
        data = dataclasses.replace(data, image_size=config.IMAGE_SIZE.get(model.model, data.image_size))
    return data, model


def evaluation_hooks(data: config.DataConfig, model: config.ModelConfig, run: config.RunConfig) -> list:
    """What evaluates within a training process, if --eval_every_steps asks for it; imports TensorFlow."""
    evaluation = from_flags(config.EvalConfig, checkpoint_dir=run.train_dir)
    if not run.eval_every_steps:
        return []
    from inception_mg.evaluation.evaluate import set_up
    from inception_mg.evaluation.within import EvaluateHook
    return [EvaluateHook(run.train_dir, lambda: set_up(data, model, evaluation), run.eval_every_steps)]


def given_flags() -> frozenset[str]:
    """Returns the names of the flags that are on the command line."""
    return frozenset(name for name in flags.FLAGS if flags.FLAGS[name].present)


def show(lines: Sequence[str]) -> None:
    """Prints lines, if there are any."""
    for line in lines:
        print(line)


def subset_line(report) -> str:
    """What is said of a subset that was written (a SubsetReport)."""
    return (f'{report.subset}: {report.images} images of {report.classes} classes in {report.shards} shards, '
            f'{report.bytes / 1e6:.1f} MB; {len(report.skipped)} files skipped'
            + (f': {report.kinds}' if report.kinds else ''))


def settle_paths() -> None:
    """Replaces the value of every flag that is a path by the path that it means; FlagError for one that cannot be
    used (see inception_mg/paths.py)."""
    describes = 'describe' in flags.FLAGS and flags.FLAGS.describe
    for name in sorted(set(paths.FLAGS) & set(flags.FLAGS)):
        if isinstance(value := flags.FLAGS[name].value, str):
            far = name in paths.REMOTE or describes and name == 'output_directory'
            flags.FLAGS[name].value = settle_path(f'--{name}', value, paths.FLAGS[name], far)


def settle_path(name: str, path: str, kind: str, far: bool) -> str:
    """As paths.settle; far: whether it may have a scheme. FlagError where TensorFlow does not know that."""
    path = paths.settle(name, path, kind, far)
    if paths.scheme_of(path):
        with quiet_import():
            import tensorflow  # noqa: F401
        remote.check_scheme(name, path)
    return path


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
    flags.DEFINE_flag(_HelpFlag(), module_name='absl.app')
    flags.DEFINE_flag(_VersionFlag(), module_name='absl.app')
    flags.FLAGS.set_gnu_getopt(bool(arguments))
    try:
        rest = flags.FLAGS(list(argv if argv is not None else sys.argv))[1:]
    except flags.Error as error:
        _exit(' '.join(str(error).split()) + ' (--help lists the flags)', EXIT_FLAGS)
    if rest and not arguments:
        _exit(f'cannot use the argument {rest[0]!r}: flags look like --name=value', EXIT_FLAGS)
    retry = config.ClusterConfig.retry_exit_code if 'retry_exit_code' not in flags.FLAGS else \
        flags.FLAGS.retry_exit_code
    try:
        settle_paths()
        code = told(main(*[rest] if arguments else []) or 0, retry)
    except UserError as error:
        _exit(str(error), told(error.exit_code, retry))
    except KeyboardInterrupt:
        _exit('interrupted', EXIT_SIGINT)
    sys.stdout.flush()
    sys.exit(code)


def run_task(main: Callable[[], int | None]) -> None:
    """As `run`, for a task of a cluster: ends the process at once, because a TensorFlow server cannot be stopped, and
    the interpreter's own way out may wait for tasks that are gone."""
    from dist.server import leave_process
    code = EXIT_FAILED
    try:
        run(main)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else EXIT_FAILED
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


def help_text() -> str:
    """What --help prints: the program's own words, then its flags with their defaults, by group."""
    grouped = {name for names in _GROUPS.values() for name in names}
    own = [flag.name for module, found in flags.FLAGS.flags_by_module_dict().items() if not module.startswith('absl')
           for flag in found if flag.name not in grouped]
    lines = [as_commands((sys.modules['__main__'].__doc__ or '').strip())]
    for heading, names in [*_GROUPS.items(), *([('this program alone', own)] if own else [])]:
        lines += ['', f'{heading}:', *(line for name in names for line in _flag_lines(flags.FLAGS[name]))]
    return '\n'.join([*lines, '', '--helpfull also lists the flags of the library that reads them, absl.'])


def as_commands(text: str) -> str:
    """A program's own words with the names that an installed package gives the programs, if it is one."""
    if pathlib.Path(__file__).parent.name == 'scripts':
        return text
    found = {entry.value.partition(':')[2]: entry.name for entry in importlib.metadata.entry_points(
        group='console_scripts') if entry.value.startswith('inception_mg_programs:')}
    return re.sub(r'(?:python )?scripts/(\w+)\.py', lambda match: found.get(match[1], match[0]), text)


def _flag_lines(flag: flags.Flag) -> list[str]:
    """'  --name=default', and what it means, wrapped, below."""
    default = str(flag.default).lower() if flag.boolean else flag.default
    choices = ' | '.join(filter(None, getattr(flag.parser, 'enum_values', ())))
    text = re.sub('^<.*?>: ', '', flag.help) + f' ({choices})' * bool(choices)  # absl's own list shows '' as nothing.
    return [f'  --{flag.name}={default}', *textwrap.wrap(text, 100, **_INDENT)]


class _HelpFlag(flags.BooleanFlag):
    """--help: absl's own shows only flags of the file that was started, and ours are made here."""

    def __init__(self):
        super().__init__('help', False, 'show this help', short_name='h', allow_override=True)

    def parse(self, arg):
        if self._parse(arg):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` is no error.
            print(help_text())
            sys.stdout.flush()
            sys.exit(0)


class _VersionFlag(flags.BooleanFlag):
    """--version."""

    def __init__(self):
        super().__init__('version', False, 'show the version, and those of what it runs on', allow_override=True)

    def parse(self, arg):
        if self._parse(arg):
            print(version_line())
            sys.stdout.flush()
            sys.exit(0)
