"""The floor: the same bytes through a plain TCP connection and back."""

import socket
import time

_LOOPBACK = "127.0.0.1"
_BUFFER_BYTES = 1 << 20  # Of the socket, each way. More does not help.


def echo_server(largest):
    """Builds a server that takes a push and answers with as many bytes.

    Args:
        largest: bytes of the largest push.

    Returns:
        A callable: `("port",)` gives the port, `("serve", num_bytes)` serves
        one connection whose exchanges have `num_bytes` each way, and ends
        with it.
    """
    listener = socket.create_server((_LOOPBACK, 0))
    buffer = memoryview(bytearray(largest))

    def answer(what, num_bytes=0):
        if what == "port":
            return listener.getsockname()[1]
        connection, _ = listener.accept()
        with connection:
            _tune(connection)
            message = buffer[:num_bytes]
            while _receive(connection, message):
                connection.sendall(message)
        return None

    return answer


def client(port, largest):
    """Builds the other side.

    Args:
        port: of the server.
        largest: bytes of the largest push.

    Returns:
        A callable `(num_bytes, exchanges)` that gives seconds per exchange
        of one warm connection.
    """
    buffer = memoryview(bytearray(largest))

    def measure(num_bytes, exchanges):
        message = buffer[:num_bytes]
        with socket.create_connection((_LOOPBACK, port)) as connection:
            _tune(connection)
            for count in (2, exchanges):
                started = time.perf_counter()
                for _ in range(count):
                    connection.sendall(message)
                    _receive(connection, message)
                seconds = (time.perf_counter() - started) / count
        return seconds

    return measure


def _tune(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _receive(connection, message):
    """Fills `message`; returns False at the end of the stream."""
    position = 0
    while position < len(message):
        count = connection.recv_into(message[position:])
        if not count:
            return False
        position += count
    return True
