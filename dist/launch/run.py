"""Runs a cluster on this machine as the flags of LaunchConfig say: on loopback, or with machines of its own."""

import contextlib
import functools
import pathlib
import shlex
from collections.abc import Callable, Sequence

from dist.launch import control, local
from dist.launch.fork_server import ForkServer
from dist.launch.laboratory import Laboratory
from inception_mg.config import LaunchConfig
from inception_mg.errors import EXIT_RETRY, UserError

COMMANDS_PROGRAM = pathlib.Path(__file__).parents[2] / 'scripts' / 'laboratory.py'


def run(config: LaunchConfig, command_for: Callable[[Sequence[str]], list[str]], log_dir: str, argv: Sequence[str],
        fork: bool = True, retry_code: int = EXIT_RETRY) -> int:
    """Runs the tasks to the end of the job; returns the exit code.

    command_for: the command line of a task, from its cluster flags. argv: this program's own command line, for
    --private_network. fork: whether tasks without GPUs may be forked from a process that has imported TensorFlow;
    the commands are then [python, script, *arguments]. retry_code: by which a task asks for a restart. Raises
    UserError.
    """
    names = local.task_names(config.num_ps, config.num_workers)
    machines = dict(zip(machine_names(config), names, strict=True))
    drills = [*local.parse_drills(config.kill), *control.parse_drills(config.drill, list(machines))]
    if config.private_network:
        local.take_private_network(argv)
    with contextlib.ExitStack() as stack:
        if config.machines:
            laboratory = stack.enter_context(Laboratory(list(machines), config.link, config.ps_link, config.ipv6))
            addresses = [laboratory.listed(machine, config.host_names == 'address') for machine in machines]
        else:
            addresses = [f'127.0.0.1:{port}' for port in local.free_ports(len(names))]
        commands = {name: command_for(own) for name, own in local.flags_for(addresses, config.num_ps).items()}
        print(f'{len(commands)} tasks; their logs are in {log_dir}')
        environ, own_environ = local.environments(config.num_workers)
        # A process that was forked has not been tried with GPUs: there each task imports TensorFlow for itself.
        forks = stack.enter_context(contextlib.closing(ForkServer())) if fork and not own_environ else None
        starter = {'start_one': forks.start, 'starter_lost': lambda: forks.lost} if forks else {}
        cluster = functools.partial(local.LocalCluster, commands, log_dir, config.max_restarts, drills,
                                    environ=environ, own_environ=own_environ, retry_code=retry_code, **starter)
        if not config.machines:
            return cluster().run()
        return _run_on_machines(cluster, laboratory, machines, log_dir, forks)


def _run_on_machines(make_cluster, laboratory: Laboratory, machines: dict[str, str], log_dir: str,
                     forks: ForkServer | None) -> int:
    """Runs each task on its machine, and obeys commands."""
    def start(machine, command, log, environ):
        if moved := orders.settle(machine):
            cluster.say(moved)
        if forks:
            return forks.start(command, log, environ, laboratory.namespaces(machine))
        return laboratory.start(machine, command, log, environ)

    def obey(line):
        try:
            return orders.obey(line)
        except UserError as error:
            return f'{line}: {error}'

    cluster = make_cluster(obey=obey, own_start={task: functools.partial(start, machine)
                                                  for machine, task in machines.items()})
    orders = control.Control(laboratory, machines, cluster.kill, cluster.alive)
    with control.listening(log_dir, orders.obey, cluster.say) as listens:
        if listens:
            print(f'commands from another terminal: python {shlex.quote(str(COMMANDS_PROGRAM))} --log_directory='
                  f'{shlex.quote(log_dir)} status')
        return cluster.run()


def machine_names(config: LaunchConfig) -> list[str]:
    """'ps0', 'worker0', 'worker1', or with --host_names=worker_1 'ps_0', ..., in the order of the tasks."""
    between = '_' if config.host_names == 'worker_1' else ''
    return [name.replace(' ', between) for name in local.task_names(config.num_ps, config.num_workers)]
