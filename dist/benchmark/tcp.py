"""The machine's own TCP speed: what a byte per second of weights and gradients is compared with.

Two processes, one connection over the loopback interface, buffers as large as the
model's weights: what two programs without TensorFlow would reach.
"""

import os
import socket
from collections.abc import Callable

from dist.benchmark.race import Contender

STREAM_BYTES = 96 * 1024 * 1024  # About the weights of Inception v3.


def contender() -> Contender:
    """A step sends so many bytes and takes as many."""
    return Contender(open_stream(STREAM_BYTES), {'unit': 'bytes', 'amount': 2 * STREAM_BYTES})


def open_stream(size: int) -> Callable[[int], None]:
    """Returns run(n), which n times sends `size` bytes to another process and takes as many from it.

    Forks; so call it before threads are started. The other process ends with the connection.
    """
    listener = socket.create_server(('127.0.0.1', 0))
    address = listener.getsockname()
    if os.fork() == 0:
        try:
            with socket.create_connection(address) as there:
                listener.close()
                _send_back(there, bytearray(size))
        finally:
            os._exit(0)
    here, _ = listener.accept()
    listener.close()
    data, room = bytes(size), bytearray(size)

    def run(count: int) -> None:
        for _ in range(count):
            here.sendall(data)
            if not _fill(here, room):
                raise ConnectionError('the other end of the stream is gone')

    return run


def _send_back(connection: socket.socket, room: bytearray) -> None:
    while _fill(connection, room):
        connection.sendall(room)


def _fill(connection: socket.socket, room: bytearray) -> bool:
    """Receives until `room` is full; False at the end of the connection."""
    view, got = memoryview(room), 0
    while got < len(room):
        count = connection.recv_into(view[got:])
        if not count:
            return False
        got += count
    return True
