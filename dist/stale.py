"""Connections that lead nowhere any more, and of which TCP has not noticed.

When a machine's cable is cut and its task is started elsewhere under the same name, gRPC keeps the old connection for
as long as TCP sends again, a quarter of an hour: nobody closed it, and a name is looked up again only when a connection
has failed. And when the cable is whole again TCP sends again only after a pause as long as the cut. So whoever serves,
or waits in vain, ends connections to addresses that no listed name stands for any more, and those that wait to send
again where a new connection is accepted; gRPC then looks for itself.
"""

import contextlib
import os
import socket
import threading
import time

from dist.hosts import Cluster, split_address

EVERY_SECS = 5.0
RETRANSMITS = 2  # In struct tcp_info of <linux/tcp.h>: how often TCP has sent again without an answer,
MANY = 3         # and how many of these are no hiccup.


def end_stale(cluster: Cluster) -> list[str]:
    """Ends this process's stale connections to ports of the host lists; returns where they led.

    Does nothing where a name cannot be looked up, or on a system without /proc.
    """
    listed: dict[int, set[str]] = {}
    for host, port in (split_address(address, '') for address in {*cluster.ps, *cluster.workers} - {''}):
        try:
            listed.setdefault(port, set()).update(addresses_of(host))
        except OSError:
            return []
    ended, accepted = [], {}
    for connection in _connections():
        with contextlib.suppress(OSError), connection:
            host, port = connection.getpeername()[:2]
            host = host.removeprefix('::ffff:').partition('%')[0]
            if port not in listed or connection.getsockname()[1] == port:
                continue  # Of something else; or somebody's to this task, who will see to it.
            stale = host not in listed[port]
            if not stale and _waits_to_send(connection):
                if (host, port) not in accepted:
                    accepted[host, port] = _accepts(host, port)
                stale = accepted[host, port]
            if stale:
                connection.shutdown(socket.SHUT_RDWR)
                ended.append(f'{host}:{port}')
    return ended


def _waits_to_send(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[RETRANSMITS] >= MANY


def _accepts(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False


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


def keep_ending_stale(cluster: Cluster) -> None:
    """Does so every few seconds, in a thread of its own: to look up a name may take long."""
    def run() -> None:
        while True:
            time.sleep(EVERY_SECS)
            end_stale(cluster)

    threading.Thread(target=run, name='stale connections', daemon=True).start()


def _connections() -> list[socket.socket]:
    """Copies of this process's sockets."""
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
