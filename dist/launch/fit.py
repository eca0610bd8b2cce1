"""One program for a model of your own: training on this machine, a cluster of it, evaluation, export.

The program calls `fit` with a Task and nothing else; its command line says the rest, by the flags of scripts/train.py,
train_distributed.py and launch_local.py:

    python my_model.py --num_gpus=2                                   towers
    python my_model.py --launch --num_ps=1 --num_workers=2 --sync     a cluster of this very program, on this machine
    python my_model.py --job_name=worker --task_id=1 --ps_hosts=...   one task of a cluster
    python my_model.py --evaluate                                     the averages of the newest checkpoint
    python my_model.py --export_dir=DIR                               a SavedModel of them
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import tensorflow as tf

from dist import hosts
from dist.launch import run as run_cluster
from dist.server import choose_gpus, hide_gpus, leave_process
from inception_mg import checks, paths, remote
from inception_mg.config import (
    ClusterConfig,
    DeviceConfig,
    EvalConfig,
    FitConfig,
    InGraphConfig,
    LaunchConfig,
    OptimizerConfig,
    RunConfig,
)
from inception_mg.errors import EXIT_FAILED, EXIT_SIGTERM, FlagError, UserError, told
from inception_mg.fast.operations import PLAIN
from inception_mg.training.task import Task
from inception_mg.version import version_line

_CONFIGS = (FitConfig, RunConfig, DeviceConfig, OptimizerConfig, ClusterConfig, InGraphConfig, LaunchConfig)


def fit(task: Task, *, train_dir: str = '', steps: int = 0, argv: Sequence[str] | None = None) -> None:
    """Does with `task` what the command line asks for.

    train_dir, steps: defaults of --train_dir and --max_steps. argv: the command line, sys.argv by default. Returns
    after training, evaluation or export on this machine; otherwise ends the process, with one line on stderr and the
    exit codes of the programs: 2 for wrong flags, --retry_exit_code when the rest of the cluster was lost (start this
    task again), 143 after a signal, 1 otherwise.
    """
    argv = list(sys.argv if argv is None else argv)
    name, is_task, retry = pathlib.Path(argv[0]).name, False, ClusterConfig.retry_exit_code
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)  # No word of the functions that this is about.
    try:
        sys.stdout.reconfigure(line_buffering=True)
        flags = parse(argv[1:], task, train_dir, steps)
        settings = part(flags, ClusterConfig)
        retry = settings.retry_exit_code
        cluster = None if flags.launch else hosts.resolve(
            settings.ps_hosts, settings.worker_hosts, settings.job_name, settings.task_id, os.environ,
            needs_ps=not flags.in_graph, slurm_ps=settings.slurm_ps, slurm_first_port=settings.slurm_first_port)
        is_task = cluster is not None and not flags.evaluate
        code = told(run(task, flags, cluster, argv), retry)
    except UserError as error:
        print(f'{name}: {error}', file=sys.stderr)
        code = told(error.exit_code, retry)
    except Exception:
        if not is_task:
            raise
        traceback.print_exc()
        code = EXIT_FAILED
    if is_task:
        leave_process(code)  # A TensorFlow server cannot be stopped.
    if code:
        sys.exit(code)


def run(task: Task, flags: argparse.Namespace, cluster: hosts.Cluster | None, argv: Sequence[str]) -> int:
    """The one thing that the flags ask for; returns the exit code."""
    check(flags, task)
    if flags.launch:
        return launch(flags, argv)
    if flags.plain_operations:
        task = task.plain() if task.plain else dataclasses.replace(task, operations=PLAIN)
    task = dataclasses.replace(task, optimizer=part(flags, OptimizerConfig),
                               batch_size=flags.batch_size or task.batch_size)
    if flags.evaluate or flags.export_dir:
        return use(task, flags)
    devices, run_config = part(flags, DeviceConfig), part(flags, RunConfig)
    checks.check_run(run_config, task.optimizer, writes=cluster is None or cluster.is_chief)
    if cluster is not None:
        return work(task, flags, cluster, devices, run_config)
    from inception_mg.training.train import train_here
    return EXIT_SIGTERM if train_here(with_operations(task), devices, run_config) else 0


def check(flags: argparse.Namespace, task: Task) -> None:
    """Raises FlagError for flags that exclude each other, or a number of examples out of its range."""
    asked = [name for name in ('--launch', '--evaluate', '--export_dir') if getattr(flags, name[2:])]
    if len(asked) > 1:
        raise FlagError(f'{" and ".join(asked)} are asked for at once: give one of them')
    for name in ('kill', 'drill'):
        if getattr(flags, name) and not flags.launch:
            raise FlagError(f'--{name}={getattr(flags, name)} needs --launch')
    if asked and not flags.train_dir:
        raise FlagError('--train_dir is empty: name the folder for checkpoints and summaries')
    if (flags.batch_size or task.batch_size) < 1:
        raise FlagError(f'--batch_size={flags.batch_size or task.batch_size} must be at least 1')


def with_operations(task: Task) -> Task:
    """The task with the fast operations that there are, if it says nothing of them. For when the GPUs are chosen: to
    try them opens a session, and the first one decides which GPUs this process sees."""
    if task.operations is not None:
        return task
    from inception_mg.fast.choice import operations_for
    return dataclasses.replace(task, operations=operations_for(False, print))


def work(task: Task, flags: argparse.Namespace, cluster: hosts.Cluster, devices: DeviceConfig, run_config: RunConfig
         ) -> int:
    """This process's part in a cluster."""
    settings, options = part(flags, ClusterConfig), part(flags, InGraphConfig)
    checks.check_cluster(settings)
    if cluster.job == 'ps':
        hide_gpus(os.environ)  # Before TensorFlow looks for them.
    else:
        choose_gpus(settings.gpus, os.environ)
    from dist import in_graph, worker
    if flags.in_graph:
        checks.check_in_graph(options, devices, len(cluster.ps), len(cluster.workers))
        if cluster.is_chief:
            return in_graph.run_client(cluster, with_operations(task), devices, run_config, options, settings)
        return in_graph.serve(cluster, devices, options, settings)
    if cluster.job == 'ps':
        return worker.run_ps(cluster, settings)
    return worker.run_worker(cluster, with_operations(task), devices, run_config, settings)


def launch(flags: argparse.Namespace, argv: Sequence[str]) -> int:
    """A cluster of this very program on this machine: its tasks get the same flags, and at the end their own."""
    config = part(flags, LaunchConfig)
    checks.check_launch(config)
    checks.check_retry_exit_code(flags.retry_exit_code)
    program = [sys.executable, *argv, '--nolaunch', '--kill=', '--drill=']
    if paths.scheme_of(flags.train_dir) and not config.log_directory:
        raise FlagError(f'--train_dir={flags.train_dir} is not on this machine: name a folder for the logs of the '
                        'tasks by --log_directory')
    log_dir = config.log_directory or os.path.join(flags.train_dir, 'logs')
    return run_cluster.run(config, lambda own: [*program, *own], log_dir, argv, fork=False,
                           retry_code=flags.retry_exit_code)


def use(task: Task, flags: argparse.Namespace) -> int:
    """Evaluates or exports the newest checkpoint."""
    if task.inference is None:
        raise FlagError('--evaluate and --export_dir need a task that says how the model is used (Task.inference)')
    inputs, logits_for, outputs, validation = task.inference
    from inception_mg.weights.checkpoints import find_checkpoint
    find_checkpoint(flags.train_dir, 'train_dir')  # Before the examples are counted.
    if flags.export_dir:
        from inception_mg.serving.export import export_any
        export_any(flags.train_dir, flags.export_dir, inputs, logits_for, outputs)
        return 0
    if validation is None:
        raise FlagError('--evaluate needs validation examples (Inference.validation)')
    from inception_mg.evaluation.evaluate import Setup, count_examples, evaluate_once
    try:
        count = count_examples(lambda: validation(task.batch_size))
    except Exception as error:
        raise task.explain(error) or error from error
    evaluate_once(Setup(EvalConfig(checkpoint_dir=flags.train_dir, run_once=True), lambda: validation(task.batch_size),
                        logits_for, outputs, len(outputs), count, task.batch_size, f'{count} validation examples',
                        task.title, 'it is of another model', task.explain))
    return 0


def part(flags: argparse.Namespace, config: type):
    """The dataclass filled from the flags; FlagError for a number that is not finite."""
    filled = config(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(config)})
    checks.check_numbers(filled)
    return filled


def parse(arguments: Sequence[str], task: Task, train_dir: str, steps: int) -> argparse.Namespace:
    """The flags; what the task, or the program, says is their default. A wrong one is a FlagError."""
    defaults = {**vars(task.optimizer), 'train_dir': train_dir, **({'max_steps': steps} if steps else {})}
    parser = _Parser(allow_abbrev=False, usage='%(prog)s [--flag=value ...]')
    parser.add_argument('--version', action='version', version=version_line())
    for config in _CONFIGS:
        group = parser.add_argument_group(config.__doc__.splitlines()[0].rstrip('.'))
        for field in dataclasses.fields(config):
            text = field.metadata['help'].replace('%', '%%')
            default = defaults.get(field.name, field.default)
            if field.type is bool:
                group.add_argument(f'--{field.name}', nargs='?', const=True, default=default, type=_boolean, help=text)
                group.add_argument(f'--no{field.name}', dest=field.name, action='store_false', help=argparse.SUPPRESS)
            else:
                group.add_argument(f'--{field.name}', default=default, type=field.type, help=f'{text} ({default!r})',
                                   choices=field.metadata['choices'] or None, metavar=field.type.__name__)
    flags = parser.parse_args(arguments)
    for name in paths.FLAGS.keys() & vars(flags).keys():
        setattr(flags, name, paths.settle(f'--{name}', getattr(flags, name), paths.FLAGS[name], name in paths.REMOTE))
        if paths.scheme_of(getattr(flags, name)):
            remote.check_scheme(f'--{name}', getattr(flags, name))
    return flags


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise FlagError(f'{message} (--help lists the flags)')


def _boolean(text: str) -> bool:
    values = {'true': True, '1': True, 'false': False, '0': False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f'{text!r} is neither true nor false')
    return values[text.lower()]
