"""scripts/private_cluster.sh between three machines, each a network namespace, joined by a bridge: a cluster trains
through the tunnel, nobody outside of it reaches a port, and nothing on the wire can be read."""

import os
import pathlib
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from cluster_harness import ToyCluster
from conftest import ROOT
from in_namespace import enter

from dist.hosts import FIRST_PORT

pytestmark = pytest.mark.cluster
SCRIPT = ROOT / 'scripts' / 'private_cluster.sh'
ETH_P_ALL, SO_RCVBUFFORCE = 0x0003, 33  # Of <linux/if_ether.h> and <asm/socket.h>.
MACHINES = 'abc'
TASKS = {'ps 0': 'a', 'worker 0': 'b', 'worker 1': 'c'}
PREFIX = f'mg{os.getpid() % 10 ** 7}'
UDP_PORT = 51820


def ip(*words: str) -> None:
    subprocess.run(['ip', *words], check=True, capture_output=True)


def lacking() -> str:
    """Why this cannot be tested here; '' if it can."""
    if sys.platform != 'linux' or os.geteuid() != 0:
        return 'only root can make machines out of network namespaces'
    if missing := [tool for tool in ('ip', 'wg', 'wireguard-go', 'nsenter', 'setpriv') if not shutil.which(tool)]:
        return f'no {", ".join(missing)} on this machine (iproute2, wireguard-tools, wireguard-go, util-linux)'
    try:
        os.close(os.open('/dev/net/tun', os.O_RDWR))
        ip('netns', 'add', PREFIX)
        ip('netns', 'delete', PREFIX)
    except (OSError, subprocess.CalledProcessError) as error:
        return f'this system lets nobody make a tunnel: {getattr(error, "stderr", None) or error}'
    return ''


WHY = lacking()
needs_machines = pytest.mark.skipif(bool(WHY), reason=WHY)


def machine(letter: str) -> str:
    """The namespace that is a machine's own network; the bridge is machine 'wire'."""
    return f'{PREFIX}{letter}'


def tunnel(letter: str) -> str:
    """The namespace of the tasks of a machine, and the interface in it."""
    return f'{PREFIX}t{letter}'


def outer(letter: str) -> str:
    return f'10.77.0.{1 + MACHINES.index(letter)}'


def inner(letter: str) -> str:
    return f'10.86.0.{1 + MACHINES.index(letter)}'


def helper(letter: str, *words: str, check: bool = True, **environ: str) -> str:
    """Runs private_cluster.sh on a machine; returns what it said, or where `check` is false what it refused with."""
    own = {name: value for name, value in os.environ.items() if not name.startswith('SUDO_')}
    done = subprocess.run(['nsenter', f'--net=/run/netns/{machine(letter)}', 'bash', str(SCRIPT), *words], text=True,
                          env={**own, 'PRIVATE_CLUSTER': tunnel(letter), **environ}, capture_output=True)
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout if check else done.stderr


@pytest.fixture(scope='module')
def wire() -> Iterator[None]:
    """Three machines with addresses of their own, and a bridge between them."""
    ends = [machine('wire'), *map(machine, MACHINES)]
    try:
        for name in ends:
            ip('netns', 'add', name)
        ip('-n', machine('wire'), 'link', 'add', 'bridge', 'type', 'bridge')
        ip('-n', machine('wire'), 'link', 'set', 'bridge', 'up')
        for letter in MACHINES:
            own = machine(letter)
            ip('link', 'add', 'eth0', 'netns', own, 'type', 'veth', 'peer', 'name', f'to_{letter}', 'netns',
               machine('wire'))
            ip('-n', machine('wire'), 'link', 'set', f'to_{letter}', 'master', 'bridge', 'up')
            ip('-n', own, 'address', 'add', f'{outer(letter)}/24', 'dev', 'eth0')
            for link in ('lo', 'eth0'):
                ip('-n', own, 'link', 'set', link, 'up')
        yield
    finally:
        for name in ends:
            subprocess.run(['ip', 'netns', 'delete', name], capture_output=True)


@pytest.fixture
def tunnels(wire, tmp_path) -> Iterator[pathlib.Path]:
    """The three with their tunnels up; the list of machines."""
    machines = tmp_path / 'machines'
    try:
        lines = [f'{letter} {helper(letter, "key").strip()} {outer(letter)}:{UDP_PORT}' for letter in MACHINES]
        machines.write_text('# name, key, where its tunnel ends\n\n' + '\n'.join(lines) + '\n')
        for letter in MACHINES:
            assert f'{letter} is {inner(letter)}, in namespace' in helper(letter, 'up', str(machines))
        yield machines
    finally:
        for letter in MACHINES:
            helper(letter, 'down')
            pathlib.Path(f'/etc/wireguard/{tunnel(letter)}.key').unlink(missing_ok=True)


def inside(namespace: str, call: Callable) -> object:
    """call() in a network namespace, by a thread of its own; what it returned or raised."""
    results: list = []

    def work() -> None:
        try:
            enter(namespace)
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def reaches(namespace: str, host: str, port: int) -> bool:
    """Whether a connection can be made from there."""
    found = inside(namespace, lambda: socket.create_connection((host, port), 2).close())
    assert found is None or isinstance(found, OSError), found
    return found is None


class Tap:
    """Within, all that crosses the wire of machine a is kept: `frames`."""

    def __enter__(self) -> 'Tap':
        def listen() -> socket.socket:
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            tap.bind(('to_a', 0))
            tap.settimeout(0.2)
            return tap

        self.frames: list[bytes] = []
        self._ended, self._socket = threading.Event(), inside(machine('wire'), listen)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def _read(self) -> None:
        while True:
            try:
                self.frames.append(self._socket.recv(1 << 17))
            except TimeoutError:
                if self._ended.is_set():
                    return

    def __exit__(self, *error) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def holds(self, data: bytes) -> bool:
        return any(data in frame for frame in self.frames)


class Machines(ToyCluster):
    """A toy cluster with a task on each machine."""

    script = ROOT / 'tests' / 'in_namespace.py'

    def __init__(self, folder: pathlib.Path, namespace: Callable, address: Callable):
        super().__init__(folder, 1, 2, max_steps=20, sync=True)
        # Each task is the only one on its address, so any ports will do.
        self.ports = {task: FIRST_PORT + number for number, task in enumerate(self.tasks)}
        at = [f'{address(TASKS[task])}:{self.ports[task]}' for task in self.tasks]
        self.ps_hosts, self.worker_hosts, self._namespace = at[:1], at[1:], namespace

    def start(self, task: str, **flags) -> None:
        super().start(task, namespace=self._namespace(TASKS[task]), **flags)

    def train(self, while_it_runs: Callable[[], None]) -> bytes:
        """Trains to the end; returns the bytes of the last weights."""
        with self, Tap() as tap:
            self.tap = tap
            self.start_all()
            self.wait_step('worker 0', 3)
            while_it_runs()
            assert self.wait_exits() == [0, 0, 0]
        step, weights = self.final()
        assert step == 20 and len(set(weights)) == 4
        return np.float32(weights[:3]).tobytes()


@needs_machines
def test_without_the_tunnel_the_ports_are_open_and_the_weights_can_be_read(wire, tmp_path):
    """So the test below can fail."""
    cluster, open_to = Machines(tmp_path, machine, outer), []
    weights = cluster.train(lambda: open_to.append(reaches(machine('c'), outer('a'), cluster.ports['ps 0'])))
    assert open_to == [True] and cluster.tap.holds(weights)
    assert 'open on every network interface (eth0)' in cluster.text('ps 0')


@needs_machines
def test_a_cluster_trains_through_the_tunnel_and_is_closed_to_all_others(tunnels, tmp_path):
    cluster, found = Machines(tmp_path, tunnel, inner), {}

    def look() -> None:
        for task, letter in TASKS.items():
            port = cluster.ports[task]
            assert reaches(tunnel('a'), inner(letter), port), task
            for source in MACHINES:  # Its own machine, too.
                for host in (outer(letter), inner(letter), '127.0.0.1'):
                    found[task, source, host] = reaches(machine(source), host, port)

    weights = cluster.train(look)
    assert len(found) == 27 and not any(found.values()), found
    assert not cluster.tap.holds(weights) and not cluster.tap.holds(b'weights')
    # Something did cross: the tunnel's datagrams of kind 4 (data). Nothing else does but its handshakes, and the calls
    # above, which were refused: TCP without a byte in it.
    packets = [frame for frame in cluster.tap.frames if frame[12:14] == b'\x08\x00']
    udp, tcp = ([frame for frame in packets if frame[23] == protocol] for protocol in (17, 6))
    assert len(udp) + len(tcp) == len(packets) and all(len(frame) < 80 for frame in tcp)
    assert all(UDP_PORT.to_bytes(2, 'big') in (frame[34:36], frame[36:38]) for frame in udp)
    assert sum(len(frame) for frame in udp if frame[42:46] == b'\x04\0\0\0') > 20 * 2 * len(weights)


@needs_machines
def test_the_helper_says_who_is_who_keeps_keys_to_itself_and_leaves_nothing(tunnels):
    key = pathlib.Path(f'/etc/wireguard/{tunnel("a")}.key')
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().strip()
    said = helper('a', 'key') + helper('a', 'run', 'cat', '/etc/hosts') + helper('a', 'up', str(tunnels), check=False)
    assert secret not in said and 'is there already: private_cluster.sh down' in said
    assert [line.split() for line in helper('a', 'run', 'cat', '/etc/hosts').splitlines()] == [
        ['127.0.0.1', 'localhost'], *([inner(letter), letter] for letter in MACHINES)]
    code = 'from dist.server import open_interfaces; print(open_interfaces())'
    assert helper('a', 'run', 'env', f'PYTHONPATH={ROOT}', sys.executable, '-c', code) == f"['{tunnel('a')}']\n"
    as_caller = helper('a', 'run', 'sh', '-c', 'id -u; id -g; echo $HOME', SUDO_UID='65534', SUDO_GID='65534')
    assert as_caller.split() == ['65534', '65534', pwd.getpwuid(65534).pw_dir]
    with subprocess.Popen(['ip', 'netns', 'exec', tunnel('a'), 'cat'], stdin=subprocess.PIPE) as task:
        while str(task.pid) not in subprocess.run(['ip', 'netns', 'pids', tunnel('a')], capture_output=True,
                                                  text=True).stdout.split():
            assert task.poll() is None
        assert '1 processes run in namespace' in helper('a', 'down', check=False)
        task.communicate(b'')
    helper('a', 'down')
    for path in (f'/run/netns/{tunnel("a")}', f'/etc/netns/{tunnel("a")}', f'/run/wireguard/{tunnel("a")}.sock'):
        assert not os.path.exists(path)


@needs_machines
@pytest.mark.parametrize('text, words', [
    ('', "does not have this machine's key"), ('a b\n', "'a b' is not NAME PUBLIC_KEY HOST:PORT"),
    ('a not_a_key 10.77.0.1:51820\n', 'not_a_key'), ('a KEY 10.77.0.1:no_port\n', 'no_port')])
def test_a_wrong_list_is_refused_and_nothing_is_left(wire, tmp_path, text, words):
    try:
        machines = tmp_path / 'machines'
        machines.write_text(text.replace('KEY', helper('a', 'key').strip()))
        assert words in helper('a', 'up', str(machines), check=False)
        for path in (f'/run/netns/{tunnel("a")}', f'/etc/netns/{tunnel("a")}'):
            assert not os.path.exists(path)
        links = subprocess.run(['ip', '-n', machine('a'), 'link'], capture_output=True, text=True).stdout
        assert tunnel('a') not in links
    finally:
        pathlib.Path(f'/etc/wireguard/{tunnel("a")}.key').unlink(missing_ok=True)
