"""The way of one task to another one, on which all data can be held up."""

import contextlib
import socket
import threading


class Link(contextlib.AbstractContextManager):
    """Passes on what comes to an address of its own, until it is cut."""

    def __init__(self, here, there):
        """Listens.

        Args:
            here: the `host:port` at which to listen.
            there: that of the other task.
        """
        self._there = _pair(there)
        self._open = threading.Event()
        self._back_is_open = threading.Event()
        self.heal()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(_pair(here))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *exc_info):
        self.heal()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self):
        """Holds up all data, both ways; connections stay."""
        self._open.clear()
        self._back_is_open.clear()

    def cut_way_back(self):
        """Holds up what comes back alone: requests arrive unanswered."""
        self._back_is_open.clear()

    def heal(self):
        """Lets all data go on."""
        self._open.set()
        self._back_is_open.set()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(
                    target=self._connect, args=(near,), daemon=True
                ).start()

    def _connect(self, near):
        with near, socket.socket() as far:
            try:
                far.connect(self._there)
            except OSError:
                return  # Nobody is there: the connection ends.
            back = threading.Thread(
                target=self._pass_on,
                args=(far, near, self._back_is_open),
                daemon=True,
            )
            back.start()
            self._pass_on(near, far, self._open)
            back.join()

    def _pass_on(self, source, target, is_open):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                is_open.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _pair(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)
