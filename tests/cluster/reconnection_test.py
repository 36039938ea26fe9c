"""Calls that fail though all servers are there."""

import types
from unittest import mock

import pytest
import tensorflow as tf

from tfdist.cluster import reconnection


@pytest.mark.parametrize(
    ("error", "again"),
    [
        # What a server lacks another worker may be about to put back.
        (tf.errors.FailedPreconditionError, 5),
        (tf.errors.UnavailableError, 5),
        (tf.errors.InvalidArgumentError, 0),
    ],
)
def test_a_call_that_fails_beside_healthy_servers_is_made_again_a_few_times(
    monkeypatch, error, again
):
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    clock = types.SimpleNamespace(
        monotonic=lambda: now[0], time=lambda: now[0], sleep=sleep
    )
    monkeypatch.setattr(reconnection, "time", clock)
    servers = types.SimpleNamespace(
        wait=lambda *_: [7],
        config=types.SimpleNamespace(ps_names=["/job:ps/task:0"], helpers={}),
    )
    monkeypatch.setattr(reconnection.connection, "reconnect", lambda _: None)
    made = reconnection.Reconnection(
        servers, mock.MagicMock(), 300.0, "/job:worker/task:0"
    )
    raised, put_back = error(None, None, "as a test says"), []
    for _ in range(again):
        done = made.recover(raised, lambda *lost: put_back.append(lost))
        assert done.servers == ()
    with pytest.raises(error, match="as a test says"):
        made.recover(raised, lambda *lost: put_back.append(lost))
    assert put_back == [(set(), [7])] * again
    # Others have had some seconds to put it back.
    assert (now[0] - 100.0 >= 2.5) == (again > 0)


def test_what_servers_have_lost_is_put_back_until_that_holds(monkeypatch):
    lives = iter([[1, 1], [1, 2], [3, 2]])
    servers = types.SimpleNamespace(
        wait=lambda *_: next(lives),
        config=types.SimpleNamespace(ps_names=["first", "second"], helpers={}),
    )
    monkeypatch.setattr(reconnection.connection, "reconnect", lambda _: None)
    clock = types.SimpleNamespace(
        monotonic=lambda: 0.0, time=lambda: 5.0, sleep=lambda _: None
    )
    monkeypatch.setattr(reconnection, "time", clock)
    made = reconnection.Reconnection(servers, mock.MagicMock(), 300.0, "me")
    asked = []

    def put_back(shards, now):
        asked.append((shards, now))
        if len(asked) == 1:
            # The other one is killed as well.
            raise tf.errors.UnavailableError(None, None, "again")

    done = made.recover(tf.errors.UnavailableError(None, None, "x"), put_back)
    assert asked == [({1}, [1, 2]), ({0, 1}, [3, 2])]
    assert done == reconnection.ServerReturn(5.0, 0.0, ("first", "second"))
    assert made.lives == [3, 2]
