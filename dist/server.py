"""The server of one task: what it may see and use, its port, its memory, and how its process ends.

TensorFlow is imported only inside the two functions that need it: a ps must hide the GPUs before
TensorFlow is loaded, and a taken port should be said without waiting for the import.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from dist.hosts import Cluster, is_loopback_host, split_address
from dist.stale import look_after_connections
from inception_mg.errors import FlagError, UserError
from inception_mg.reasons import reason_of

_SIOCGIFFLAGS, _IFF_UP, _IFF_LOOPBACK = 0x8913, 0x1, 0x8  # Of <linux/sockios.h> and <linux/if.h>.
# mallopt's parameters (malloc.h) and the values that they get.
_KEEP = {
    # M_ARENA_MAX: the heaps of further arenas, 64 MB each, go back whenever they are empty; but many cores need some.
    -8: max(1, (os.cpu_count() or 1) // 8),
    -3: 32 << 20,   # M_MMAP_THRESHOLD: the largest that is accepted; larger blocks get pages of their own.
    -1: 2**31 - 1,  # M_TRIM_THRESHOLD: bytes that may lie free at the end of the heap.
}


def hide_gpus(environ: MutableMapping[str, str]) -> None:
    """Makes a ps blind to GPUs; has an effect only before TensorFlow is imported."""
    environ['CUDA_VISIBLE_DEVICES'] = '-1'


def choose_gpus(numbers: str, environ: MutableMapping[str, str]) -> None:
    """Shows TensorFlow only the GPUs of these numbers ('' = leave it as it is), counted among those that
    CUDA_VISIBLE_DEVICES shows; has an effect only before TensorFlow is imported. FlagError for one too high."""
    if not numbers:
        return
    chosen = [number.strip() for number in numbers.split(',')]
    visible = environ.get('CUDA_VISIBLE_DEVICES')
    shown = [name.strip() for name in (visible or '').split(',') if name.strip()]
    if -1 in (ends := [int(name) if name.lstrip('-').isdecimal() else 0 for name in shown]):
        shown = shown[:ends.index(-1)]  # CUDA shows those before the first that is not there.
    if visible is not None and not shown:
        raise FlagError(f'--gpus={numbers}, but CUDA_VISIBLE_DEVICES={visible} shows none: leave out one of them')
    if shown and int(max(chosen, key=int)) >= len(shown):
        raise FlagError(f'--gpus={numbers}, but CUDA_VISIBLE_DEVICES={",".join(shown)} shows {len(shown)}')
    environ['CUDA_VISIBLE_DEVICES'] = ','.join(shown[int(number)] if shown else number for number in chosen)


def bypass_proxy(cluster: Cluster, environ: MutableMapping[str, str]) -> None:
    """Exempts the cluster's hosts from http_proxy, https_proxy and grpc_proxy, which gRPC obeys.

    gRPC reads no_grpc_proxy and, only if that is unset, no_proxy; so the latter is carried over.
    """
    if not any(environ.get(name) for name in ('grpc_proxy', 'http_proxy', 'https_proxy')):
        return
    exempt = [name for name in (environ.get('no_grpc_proxy') or environ.get('no_proxy', '')).split(',') if name]
    hosts = [split_address(address, '')[0] for address in cluster.ps + cluster.workers if address]
    environ['no_grpc_proxy'] = ','.join(dict.fromkeys(exempt + hosts))


def check_port(address: str, task: str, patience: float = 3.0, sleep: Callable[[float], None] = time.sleep) -> None:
    """Raises UserError if another process listens on the port of `address`.

    TensorFlow's server listens on every interface, so this tries to do the same; waits `patience`
    seconds for a predecessor that has just been killed.
    """
    deadline = time.monotonic() + patience
    while (error := _bind_error(split_address(address, task)[1])) is not None:
        if time.monotonic() > deadline:
            raise UserError(f'{task} cannot listen on {address}: {error} (another process, perhaps an '
                            'earlier run, holds the port)')
        sleep(0.2)


def _bind_error(port: int) -> str | None:
    for family, anywhere in ((socket.AF_INET6, '::'), (socket.AF_INET, '0.0.0.0')):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((anywhere, port))
                probe.listen(1)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # A machine without IPv6.
                return error.strerror.lower()
    return None


def session_config(cluster: Cluster, base=None):
    """Returns the ConfigProto of this task's server and sessions: `base` with the cluster's part.

    The server creates the devices, so memory options and device counts count only if it has them:
    give the same value to both. A ps has no GPU.
    """
    import tensorflow as tf
    config = tf.compat.v1.ConfigProto()
    if base is not None:
        config.CopyFrom(base)
    del config.device_filters[:]
    config.device_filters.extend(cluster.device_filters)
    if cluster.job == 'ps':
        config.device_count['GPU'] = 0
    return config


def start_server(cluster: Cluster, config, log: Callable[[str], None] = print):
    """Starts and returns the tf.distribute.Server of this task; says who can reach it. The process keeps the memory
    that it frees from here on.

    Raises UserError in one line if the port cannot be had.
    """
    import tensorflow as tf

    from dist.introduction import introduce
    keep_freed_memory(os.environ)
    check_port(cluster.address, cluster.name)
    bypass_proxy(cluster, os.environ)
    spec = tf.train.ClusterSpec({job: {i: host for i, host in enumerate(hosts) if host}
                                 for job, hosts in cluster.lists.items() if hosts})
    try:
        server = tf.distribute.Server(spec, job_name=cluster.job, task_index=cluster.index, config=config)
    except tf.errors.OpError as error:
        raise UserError(f'{cluster.name} cannot start its server on {cluster.address}: '
                        f'{reason_of(error)}') from None
    look_after_connections(cluster)
    introduce(cluster, server.target)
    log(f'{cluster.name} serves on {cluster.address}')
    if warning := open_port_warning(cluster, open_interfaces()):
        log(f'{cluster.name}: {warning}')
    return server


def keep_freed_memory(environ: Mapping[str, str]) -> bool:
    """Makes malloc keep what is freed; returns whether it does. Call it before there are threads.

    By default freed buffers go back to the system, which hands out new pages, one fault and 4 KB of zeros at a time.
    What arrives by gRPC lies in such buffers twice, in pieces and then as a tensor: of 99 MB each way, 35,000 faults
    per step of 1 ps and 1 worker, and a third of the CPU time that the two spend on it (1.56 seconds per GB, 1.09
    without the faults). A process stays as large as it was at its peak. An environment that has settings for malloc
    of its own is left alone, and so is a C library without mallopt.
    """
    if 'GLIBC_TUNABLES' in environ or any(name.startswith('MALLOC_') for name in environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    return mallopt is not None and all([mallopt(*setting) for setting in _KEEP.items()])


def leave_process(code: int) -> None:
    """Ends this process at once, with its output flushed.

    TensorFlow's server cannot be stopped, and the interpreter's own way out waits in its destructor
    for calls to other tasks, for ever if those are gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_interfaces() -> list[str]:
    """The network interfaces through which others may reach this process: those that are up, without the loopback's."""
    return [name for _, name in socket.if_nameindex() if _interface_flags(name) & (_IFF_UP | _IFF_LOOPBACK) == _IFF_UP]


def _interface_flags(name: str) -> int:
    if sys.platform != 'linux':  # Where other numbers mean this: which are up is not asked for.
        return _IFF_LOOPBACK if name.startswith('lo') else _IFF_UP
    import fcntl
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack('16sH14x', name.encode(), 0))
        except OSError:  # It has gone meanwhile.
            return 0
    return struct.unpack('16sH14x', answer)[1]


def open_port_warning(cluster: Cluster, interfaces: Sequence[str]) -> str:
    """The line that says who can reach the TensorFlow servers of this machine: anyone, whatever address is listed.

    The first task of a machine says it for all of them; '' for the others, and where no interface leads in.
    """
    def machine_of(address: str) -> str:
        host = split_address(address, '')[0].lower()
        return 'localhost' if is_loopback_host(host) else host

    here = [address for address in cluster.ps + cluster.workers
            if address and machine_of(address) == machine_of(cluster.address)]
    if not interfaces or here[0] != cluster.address:
        return ''
    ports, names = (some_of(part) for part in ([address.rpartition(':')[2] for address in here], interfaces))
    return (f'port{"s" * (len(here) > 1)} {ports} of this machine {"are" if len(here) > 1 else "is"} open on every '
            f'network interface ({names}), without password or encryption: whoever reaches '
            f'{"one" if len(here) > 1 else "it"} can run code here; docs/security.md says how to close '
            f'{"them" if len(here) > 1 else "it"}')


def some_of(parts: Sequence[str], most: int = 3) -> str:
    """The first few, and how many there are besides."""
    more = len(parts) - most
    return ', '.join(parts[:most]) + (f' and {more} more' if more > 0 else '')
