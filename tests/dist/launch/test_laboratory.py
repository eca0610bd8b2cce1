"""The laboratory itself: addresses, names, cuts, speeds and what is left of it. No TensorFlow."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import ROOT
from laboratory_cluster import why_not

from dist.launch import control
from dist.launch import laboratory as laboratories
from dist.launch.laboratory import Laboratory
from inception_mg.errors import FlagError, UserError

pytestmark = pytest.mark.laboratory
ECHO = '''
import socket, sys, threading
server = socket.create_server(("::", 2222), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
def answer(connection):
    while data := connection.recv(1 << 20):
        if len(data) < 100:
            connection.sendall(data)
while True:
    threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
'''
KNOCK = '''
import socket, sys
with socket.create_connection((sys.argv[1], 2222), 1) as connection:
    connection.sendall(b"x")
    connection.recv(1)
    print(connection.getpeername()[0].replace("::ffff:", ""), socket.gethostname(), end="")
'''


@pytest.fixture
def make(tmp_path):
    """Makes laboratories whose ps0 answers, and removes them."""
    if reason := why_not():
        pytest.skip(reason)
    made, servers = [], []

    def make(*names, **options):
        made.append(Laboratory(names, **options).__enter__())
        servers.append(made[-1].start('ps0', [sys.executable, '-c', ECHO], tmp_path / 'ps0.log', os.environ))
        deadline = time.monotonic() + 10
        while 'listens' not in (tmp_path / 'ps0.log').read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return made[-1]

    yield make
    for server in servers:
        server.kill()
        server.wait()
    for one in made:
        one.close()


def knock(laboratory: Laboratory, machine: str, host: str = 'ps0') -> str:
    """'ADDRESS NAME' when `host` answers that machine of this name, else the kind of error."""
    done = subprocess.run(laboratory.command(machine, [sys.executable, '-c', KNOCK, host]), capture_output=True,
                          text=True, timeout=20)
    return done.stdout or done.stderr.splitlines()[-1].split(':')[0]


@pytest.mark.parametrize('ipv6, address', [(False, '10.77.0.1'), (True, 'fd00:77::1')])
def test_cut_heal_move(make, ipv6, address):
    laboratory = make('ps0', 'worker_0', 'worker1', link='1gbit', ipv6=ipv6)
    assert laboratory.names == ['ps0', 'worker_0', 'worker1']
    assert laboratory.listed('worker1') == 'worker1:2222'
    assert laboratory.listed('ps0', by_address=True) == (f'[{address}]:2222' if ipv6 else f'{address}:2222')
    assert knock(laboratory, 'worker_0') == f'{address} worker_0'
    laboratory.cut('worker_0')
    assert knock(laboratory, 'worker_0') == 'TimeoutError'  # Nobody says that there is nobody.
    assert knock(laboratory, 'worker1') == f'{address} worker1' and laboratory.cuts('worker_0') == ['all']
    laboratory.heal('worker_0')
    assert knock(laboratory, 'worker_0') == f'{address} worker_0' and laboratory.cuts('worker_0') == []
    laboratory.cut('worker_0', 'ps0')
    laboratory.cut('worker_0', 'worker1')
    assert knock(laboratory, 'worker_0') == 'TimeoutError' and knock(laboratory, 'worker1') == f'{address} worker1'
    laboratory.heal('worker_0', 'worker1')
    assert laboratory.cuts('ps0') == ['worker_0'] and laboratory.cuts('worker1') == []
    moved = laboratory.move('ps0')
    assert moved == laboratory.address('ps0') != address
    assert knock(laboratory, 'worker1') == f'{moved} worker1'
    assert knock(laboratory, 'worker1', address) == 'TimeoutError' == knock(laboratory, 'worker_0')
    laboratory.heal('ps0')
    assert knock(laboratory, 'worker_0') == f'{moved} worker_0'


def test_machines_come_and_go_and_names_are_handed_on(make):
    laboratory = make('ps0', 'worker0')
    laboratory.add('spare', '10mbit')
    assert knock(laboratory, 'spare').endswith(' spare') and laboratory.machine('spare').rate == 10 ** 7
    laboratory.point('worker0', 'spare')
    assert laboratory.address('worker0') == laboratory.machine('spare').address
    assert f'{laboratory.address("worker0")} worker0' in subprocess.run(
        laboratory.command('ps0', ['cat', '/etc/hosts']), capture_output=True, text=True).stdout
    laboratory.point('worker0', 'worker0')
    assert laboratory.address('worker0') == laboratory.machine('worker0').address
    laboratory.remove('spare')
    assert laboratory.names == ['ps0', 'worker0']
    with pytest.raises(FlagError, match='there is no machine spare: there are ps0, worker0'):
        laboratory.cut('spare')
    with pytest.raises(FlagError, match='two machines ps0'):
        laboratory.add('ps0')


def test_a_cable_has_a_speed_and_counts(make):
    """Not faster than it is allowed to be; how slow it is says more of this machine."""
    laboratory = make('ps0', 'worker0', ps_link='20mbit')
    before = laboratory.bytes('ps0'), laboratory.bytes('worker0')
    send = 'import socket, time; c = socket.create_connection(("ps0", 2222)); end = time.time() + 1.5\n' \
           'while time.time() < end: c.sendall(bytes(65536))'
    begun = time.monotonic()
    subprocess.run(laboratory.command('worker0', [sys.executable, '-c', send]), check=True, timeout=30)
    (sent, received), (worker_sent, _) = laboratory.bytes('ps0'), laboratory.bytes('worker0')
    assert 100_000 < received - before[0][1] < 20e6 / 8 * (time.monotonic() - begun) + laboratories.MIN_BURST + 1e5
    assert worker_sent - before[1][0] >= received - before[0][1] > 5 * (sent - before[0][0])
    laboratory.slow('ps0', '5mbit')
    assert 'rate 5Mbit' in subprocess.run(laboratory.command('ps0', ['tc', 'qdisc', 'show', 'dev', 'eth0']),
                                          capture_output=True, text=True).stdout
    laboratory.slow('ps0', '')
    assert 'tbf' not in subprocess.run(laboratory.command('ps0', ['tc', 'qdisc']), capture_output=True,
                                       text=True).stdout


def test_files_are_those_of_the_user_and_the_folder_is_kept(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    laboratory = make('ps0')
    process = laboratory.start('ps0', [sys.executable, '-c', 'open("mine", "w"); print("done")'], tmp_path / 'log',
                               os.environ)
    assert process.wait(20) == 0 and (tmp_path / 'log').read_text() == 'done\n'
    assert (tmp_path / 'mine').stat().st_uid == os.getuid()


@pytest.mark.parametrize('end', ['os.kill(os.getpid(), signal.SIGKILL)', 'os.kill(os.getpid(), signal.SIGTERM)',
                                 'raise ValueError("an error in the middle")', 'sys.exit(0)'])
def test_nothing_is_left(end, tmp_path):
    """However its owner ends: sleepers, tasks and network devices go with it, and there are no names to be left."""
    if reason := why_not():
        pytest.skip(reason)
    program = textwrap.dedent(f'''
        import os, pathlib, signal, sys
        sys.path.insert(0, {str(ROOT)!r})
        from dist.launch.laboratory import Laboratory
        with Laboratory(['ps0', 'worker0'], link='100mbit') as laboratory:
            task = laboratory.start('worker0', ['sleep', '120'], 'log', os.environ)
            print(task.pid, *[laboratory.machine(name).pid for name in laboratory.names], flush=True)
            {end}
    ''')
    devices = os.listdir('/sys/class/net')
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f'{left} still run'
        time.sleep(0.05)
    assert os.listdir('/sys/class/net') == devices and os.listdir(tmp_path) == ['log']


def runs(pid: int) -> bool:
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize('text', ['fast', '1', '100', '1gb', '-1gbit', '1kbit', '100 mbit', 'nanmbit'])
def test_a_speed_that_is_none_is_refused(text):
    with pytest.raises(FlagError, match='--ps_link=.* is not a speed like'):
        Laboratory(['ps0'], ps_link=text)


def test_what_the_system_lacks_is_said_in_a_line(monkeypatch):
    monkeypatch.setattr(laboratories, 'TOOLS', (*laboratories.TOOLS, 'no-such-tool'))
    with pytest.raises(UserError, match='this system has no no-such-tool'), Laboratory(['ps0']):
        pass


def test_a_system_without_namespaces_is_said_in_a_line(tmp_path, monkeypatch):
    """Such as a container that may not have them; the tool's own reason is in it."""
    (tmp_path / 'unshare').write_text('#!/bin/sh\necho "unshare: unshare failed: Operation not permitted" >&2; exit 1\n')
    (tmp_path / 'unshare').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    with pytest.raises(UserError, match='refuses them .*Operation not permitted.*as root') as error, Laboratory(['x']):
        pass
    assert len(str(error.value).splitlines()) == 1


MACHINES = ['ps0', 'worker0', 'worker-1']


@pytest.mark.parametrize('line, words', [
    ('cut worker0', ('cut', 'worker0', '')), ('heal worker-1', ('heal', 'worker-1', '')),
    ('cut worker0-ps0', ('cut', 'worker0', 'ps0')), ('cut worker-1-ps0', ('cut', 'worker-1', 'ps0')),
    ('slow ps0=100mbit', ('slow', 'ps0', '100mbit')), ('move worker0', ('move', 'worker0', '')),
    ('status', ('status', '', ''))])
def test_commands(line, words):
    assert control.split_command(line, MACHINES) == words


@pytest.mark.parametrize('line, words', [
    ('', 'nothing is no command'), ('burn ps0', 'burn is no command: use one of cut, heal'),
    ('cut', 'cut wants a machine: there are ps0, worker0, worker-1, or two'), ('cut ps1', 'cut wants a machine'),
    ('cut ps0-ps0', 'ps0 cannot be cut from itself'), ('cut ps0-ps1', 'cut wants a machine'),
    ('slow ps0', 'slow wants a speed'), ('slow ps0=9', '--slow:ps0=9 is not a speed'), ('move ps0-worker0', 'wants')])
def test_wrong_commands(line, words):
    with pytest.raises(FlagError, match=words):
        control.split_command(line, MACHINES)


def test_drills():
    first, second = control.parse_drills('cut:worker0-ps0@step=50, slow:ps0=1gbit@step=7', MACHINES)
    assert (first.step, first.command) == (50, 'cut worker0-ps0') and (second.step, second.command) == (
        7, 'slow ps0=1gbit')
    for text in ('cut:worker0', 'cut:worker0@50', 'status:ps0@step=1', 'cut:ps7@step=1'):
        with pytest.raises(FlagError, match=f'--drill={text}'):
            control.parse_drills(text, MACHINES)


def test_commands_from_another_terminal(tmp_path):
    folder = tmp_path / ('long' * 40)  # Longer than the name of a socket may be.
    folder.mkdir()
    said = []

    def obey(line):
        if line.startswith('cut'):
            raise FlagError('there is no such machine')
        return f'did {line.strip()}'

    with control.listening(folder, obey, said.append) as listens:
        assert listens and control.ask(folder, 'move worker0') == 'did move worker0' == said[-1]
        assert control.ask(folder, 'status') == 'did status' and len(said) == 1
        with pytest.raises(UserError, match='there is no such machine'):
            control.ask(folder, 'cut x')
        with pytest.raises(FlagError, match='another cluster .* runs with --log_directory='), control.listening(
                folder, obey, said.append):
            pass
        assert control.ask(folder, 'move worker0')  # It still listens.
    assert os.listdir(folder) == []
    with pytest.raises(UserError, match='no cluster with machines of its own answers'):
        control.ask(folder, 'status')
    (folder / control.SOCKET).touch()  # Left by one that was killed.
    with control.listening(folder, obey, said.append) as listens:
        assert listens and control.ask(folder, 'status') == 'did status'


def test_a_task_started_by_fork_is_on_its_machine(make, tmp_path):
    """As fork_server does it: enter_namespaces in a process that was forked, which ends with its parent."""
    laboratory = make('ps0', 'worker0')
    pid = os.fork()
    if pid == 0:
        with open(tmp_path / 'child', 'w') as output:
            laboratories.enter_namespaces(laboratory.namespaces('worker0'))
            output.write(f'{os.uname().nodename} {os.getcwd()}')
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / 'child').read_text() == f'worker0 {os.getcwd()}'


