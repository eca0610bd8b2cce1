"""The server of a task: its port, what it sees, its options, and the memory that it keeps."""

import platform
import socket
import subprocess
import sys

import pytest

from dist.hosts import Cluster
from dist.stale import limit_unanswered
from dist.server import (
    bypass_proxy,
    check_port,
    choose_gpus,
    hide_gpus,
    keep_freed_memory,
    open_interfaces,
    open_port_warning,
    session_config,
    start_server,
)
from inception_mg.errors import FlagError, UserError

PS, WORKERS = ('a:1', 'b:2'), ('c:3', 'd:4', 'e:5')
# As gRPC does: another thread than the main one takes large buffers, fills them, and frees them all. In a process of
# its own, since malloc's settings hold to a process's end.
FAULTS = """
import ctypes, os, resource, sys, threading
from dist.server import keep_freed_memory
if sys.argv[1] == 'keep':
    assert keep_freed_memory({})

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    buffers = [ctypes.create_string_buffer(8 << 20) for _ in range(4)]
    del buffers

def steps():
    step()
    before = faults()
    for _ in range(10):
        step()
    print((faults() - before) * os.sysconf('SC_PAGESIZE') >> 20)

thread = threading.Thread(target=steps)
thread.start()
thread.join()
"""


def test_port_in_use():
    with socket.socket() as holder:
        holder.bind(('127.0.0.1', 0))
        holder.listen(1)
        address = f'127.0.0.1:{holder.getsockname()[1]}'
        with pytest.raises(UserError, match=f'ps 0 cannot listen on {address}: address already in use'):
            check_port(address, 'ps 0', patience=0)
    check_port(address, 'ps 0', patience=0)


def test_port_shared_on_purpose_is_in_use_too():
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(('0.0.0.0', 0))
        holder.listen(1)
        with pytest.raises(UserError, match='already in use'):
            check_port(f'127.0.0.1:{holder.getsockname()[1]}', 'ps 0', patience=0)


def test_bypass_proxy():
    cluster = Cluster(('10.0.0.1:1', '[fe80::2]:2'), ('c:3', 'c:4'), 'ps', 0)
    environ = {'no_proxy': 'x'}
    bypass_proxy(cluster, environ)
    assert environ == {'no_proxy': 'x'}
    environ |= {'http_proxy': 'http://p:1'}
    bypass_proxy(cluster, environ)
    assert environ['no_grpc_proxy'] == 'x,10.0.0.1,fe80::2,c'
    environ['no_grpc_proxy'] = 'y'
    bypass_proxy(cluster, environ)
    assert environ['no_grpc_proxy'] == 'y,10.0.0.1,fe80::2,c'


@pytest.mark.parametrize('shown, numbers, seen', [
    (None, '', None), (None, '1', '1'), (None, '0, 2', '0,2'), ('4,5,6', '1,2', '5,6'), ('4', '', '4')])
def test_choose_gpus(shown, numbers, seen):
    environ = {} if shown is None else {'CUDA_VISIBLE_DEVICES': shown}
    choose_gpus(numbers, environ)
    assert environ.get('CUDA_VISIBLE_DEVICES') == seen
    with pytest.raises(FlagError, match='--gpus=1, but CUDA_VISIBLE_DEVICES=4 shows 1'):
        choose_gpus('1', {'CUDA_VISIBLE_DEVICES': '4'})


def test_a_ps_sees_no_gpu():
    environ = {'CUDA_VISIBLE_DEVICES': '0,1'}
    hide_gpus(environ)
    assert environ['CUDA_VISIBLE_DEVICES'] == '-1'


def test_the_server_has_the_options_and_warns_of_its_open_port():
    """TensorFlow makes the devices with the server's options, not with a session's."""
    import tensorflow as tf

    from dist.launch.local import free_ports
    here = socket.gethostname()
    cluster, lines = Cluster((f'{here}:{free_ports(1)[0]}',), (f'{here}:9',), 'ps', 0), []
    base = tf.compat.v1.ConfigProto(device_count={'CPU': 3})
    base.gpu_options.per_process_gpu_memory_fraction = 0.2
    server = start_server(cluster, session_config(cluster, base), lines.append)
    options = server.server_def.default_session_config
    assert options.gpu_options.per_process_gpu_memory_fraction == 0.2 and options.device_count['GPU'] == 0
    # Filtered: a session without would wait for the worker, which is not there.
    with tf.compat.v1.Session(server.target, tf.Graph(), session_config(cluster)) as session:
        devices = [device.name for device in session.list_devices()]
    assert len([name for name in devices if 'CPU' in name]) == 3 and not [name for name in devices if 'GPU' in name]
    # Where this machine has no network there is nothing to warn of.
    assert len(lines) == 1 + bool(open_interfaces()) and all('open on every network interface' in x for x in lines[1:])


def test_session_config():
    import tensorflow as tf
    base = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=['/job:x'])
    config_ps = session_config(Cluster(PS, WORKERS, 'ps', 0), base)
    assert config_ps.device_count['GPU'] == 0 and config_ps.allow_soft_placement
    assert list(config_ps.device_filters) == ['/job:ps/task:0'] and list(base.device_filters) == ['/job:x']
    assert 'GPU' not in session_config(Cluster(PS, WORKERS, 'worker', 0), base).device_count


def test_the_first_task_of_a_machine_warns_of_the_open_ports_for_all():
    def warnings(ps: str, workers: str, interfaces=('eth0',)) -> list[str]:
        lists = tuple(ps.split()), tuple(workers.split())
        tasks = [Cluster(*lists, job, index, needs_ps=False) for job, hosts in zip(('ps', 'worker'), lists, strict=True)
                 for index in range(len(hosts))]
        return [open_port_warning(task, interfaces) for task in tasks]

    first, *others = warnings('127.0.0.1:1 localhost:2', '127.0.0.2:3 [::1]:4 127.0.0.1:5')
    assert first == (
        'ports 1, 2, 3 and 2 more of this machine are open on every network interface (eth0), without password or '
        'encryption: whoever reaches one can run code here; docs/security.md says how to close them')
    assert others == [''] * 4
    assert warnings('127.0.0.1:1', '127.0.0.1:2', []) == ['', '']  # A network of its own, which nobody else can enter.
    first, second, third, fourth = warnings('A:1 b:2', 'c:3 a:4', ('eth0', 'eth1', 'wg0', 'x', 'y'))
    assert first.startswith('ports 1, 4 of this') and '(eth0, eth1, wg0 and 2 more)' in first and fourth == ''
    assert second.startswith('port 2 of this machine is open') and 'reaches it can' in second
    assert third.startswith('port 3 of')
    assert warnings('', '10.0.0.1:5')[0].startswith('port 5 of')


def test_interfaces_that_are_down_and_the_loopback_are_not_open(monkeypatch):
    names = {name for _, name in socket.if_nameindex()}
    assert 'lo' not in open_interfaces() and set(open_interfaces()) <= names
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo'), (2, 'gone0')])
    assert open_interfaces() == []


def refilled_mb(how: str) -> int:
    """Megabytes of new pages that a process asked for in ten steps of 32 MB."""
    return int(subprocess.run([sys.executable, '-c', FAULTS, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='a C library without mallopt')
def test_freed_memory_is_used_again_without_asking_the_system():
    assert refilled_mb('default') > 100  # Else there is nothing to gain here.
    assert refilled_mb('keep') < 32


@pytest.mark.parametrize('name', ['GLIBC_TUNABLES', 'MALLOC_ARENA_MAX'])
def test_settings_of_the_environment_are_left_alone(name):
    assert not keep_freed_memory({name: '1'})


@pytest.mark.parametrize('shown', ['', '-1', ' ', '-1,0'])
def test_gpus_of_which_none_is_shown(shown):
    environ = {'CUDA_VISIBLE_DEVICES': shown}
    with pytest.raises(FlagError, match='--gpus=0, but CUDA_VISIBLE_DEVICES=.* shows none'):
        choose_gpus('0', environ)
    assert environ == {'CUDA_VISIBLE_DEVICES': shown}


def test_connections_whose_data_nobody_acknowledges_are_closed():
    """Those of this process, both ends, and no others of its files; what the kernel does then is its own affair."""
    with socket.create_server(('127.0.0.1', 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted, open(__file__):
            assert limit_unanswered(7.5) >= 3
            for end in (client, accepted, listener):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
            client.sendall(b'x')
            assert accepted.recv(1) == b'x'
