"""Connections that lead nowhere any more, and of which TCP has not noticed.

When a machine is out of reach for a while, TCP tries again after twice the time at each failure, so a connection lives
on as late again as it was dead; and when the machine is gone, and its task was started elsewhere under the same name,
gRPC keeps the connection for a quarter of an hour, for a name is looked up again only when a connection has failed. All
sessions of a process share one connection to each task, new ones too. So every task sees to its own: data that stays
unacknowledged closes a connection after a while, and connections to addresses that no listed name stands for any more
are ended. gRPC replaces either within seconds. TensorFlow gives no way to say this to gRPC itself.
"""

import contextlib
import os
import socket
import threading
import time

from dist.hosts import Cluster, split_address

UNANSWERED_SECS = 20.0  # What gRPC's own keepalive allows, which TensorFlow leaves off.
EVERY_SECS, MOVED_SECS = 2.0, 6.0


def look_after_connections(cluster: Cluster) -> None:
    """Does both every few seconds, in a thread of its own, for new connections are made all the time; to look up a name
    may take long."""
    def run() -> None:
        next_look = time.monotonic()
        while True:
            limit_unanswered()
            if time.monotonic() >= next_look:
                end_moved(cluster)
                # With many tasks less often: all of them ask for the names of all.
                next_look = time.monotonic() + max(MOVED_SECS, len(cluster.ps + cluster.workers))
            time.sleep(EVERY_SECS)

    threading.Thread(target=run, name='connections', daemon=True).start()


def limit_unanswered(secs: float = UNANSWERED_SECS) -> int:
    """Has the kernel close any TCP connection of this process whose data stays unacknowledged for `secs`; returns how
    many there are. On Linux; elsewhere 0."""
    option, count = getattr(socket, 'TCP_USER_TIMEOUT', None), 0
    for connection in _connections() if option is not None else []:
        with contextlib.suppress(OSError), connection:  # It was closed meanwhile.
            connection.setsockopt(socket.IPPROTO_TCP, option, int(1000 * secs))
            count += 1
    return count


def end_moved(cluster: Cluster) -> list[str]:
    """Ends this process's connections to a port of the host lists at an address that no listed host has now; returns
    where they led. Does nothing where a name cannot be looked up, or on a system without /proc."""
    listed: dict[int, set[str]] = {}
    for host, port in (split_address(address, '') for address in {*cluster.ps, *cluster.workers} - {''}):
        try:
            listed.setdefault(port, set()).update(addresses_of(host))
        except OSError:
            return []
    ended = []
    for connection in _connections():
        with contextlib.suppress(OSError), connection:
            host, port = connection.getpeername()[:2]
            host = host.removeprefix('::ffff:').partition('%')[0]
            # One that came to this task's own port is somebody else's to see to.
            if port in listed and host not in listed[port] and connection.getsockname()[1] != port:
                connection.shutdown(socket.SHUT_RDWR)
                ended.append(f'{host}:{port}')
    return ended


def addresses_of(host: str) -> set[str]:
    """What a host name stands for now; OSError if that cannot be found out."""
    return {f'{entry[4][0]}'.partition('%')[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def is_here(host: str) -> bool:
    """Whether a host name stands for this machine."""
    with contextlib.suppress(OSError):
        for address in addresses_of(host):
            with contextlib.suppress(OSError), socket.socket(
                    socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind((address, 0))
                return True
    return False


def _connections() -> list[socket.socket]:
    """Copies of this process's TCP sockets."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir('/proc/self/fd'):
            with contextlib.suppress(OSError):
                if os.readlink(f'/proc/self/fd/{name}').startswith('socket:'):
                    copy = socket.socket(fileno=os.dup(int(name)))
                    if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                        found.append(copy)
                    else:
                        copy.close()
    return found
