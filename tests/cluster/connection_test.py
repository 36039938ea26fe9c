"""What a worker says of those that it waits for."""

import socket

import pytest

from tfdist.cluster import connection


def test_a_host_that_does_not_resolve_is_said_to(monkeypatch):
    find = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        if host == "nohost.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name not known")
        return find(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # It does not listen.
        here = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError) as caught:
            connection.wait_for_listeners(
                "server", {"a": "nohost.invalid:1", "b": here}, 0.0
            )
    assert (
        "waiting for server a at nohost.invalid:1 (this host name does not "
        f"resolve: Name not known), server b at {here}."
    ) in str(caught.value)
