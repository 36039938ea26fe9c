"""Sessions whose servers may be gone."""

import contextlib
import socket

import pytest
import tensorflow as tf

from tfdist.cluster import sessions


class Session:
    """Says whether it was closed, by a server that knows nothing of it."""

    def __init__(self):
        self.calls = 0

    def close(self):
        self.calls += 1
        raise tf.errors.AbortedError(None, None, "Who are you?")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_server_that_is_gone_is_not_asked(is_there):
    session = Session()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not is_there:
            server.close()
        sessions.close(session, address)
    assert session.calls == is_there
