"""Settings of the environment that come before or after TensorFlow."""

import os
import warnings

import pytest

from tfdist import private_tensorflow
from tfdist.cluster import environment

CHANNELS = "TF_GRPC_DEFAULT_OPTIONS"


@pytest.mark.parametrize(
    "is_connected, is_set, expected",
    [(True, False, [CHANNELS]), (True, True, []), (False, False, [])],
)
def test_what_comes_too_late_is_named(
    monkeypatch, is_connected, is_set, expected
):
    monkeypatch.setattr(
        private_tensorflow, "is_connected", lambda: is_connected
    )
    monkeypatch.setenv(CHANNELS, "grpc.keepalive_time_ms=1000")
    if not is_set:
        monkeypatch.delenv(CHANNELS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        environment.apply_here()
    named = [CHANNELS for one in caught if CHANNELS in str(one.message)]
    assert named == expected
    assert CHANNELS in os.environ


@pytest.mark.parametrize("is_ours", [True, False])
def test_servers_ping_each_other_seldom(is_ours):
    ours = environment.RUNTIME_ENVIRONMENT[CHANNELS]
    environ = {CHANNELS: ours if is_ours else "grpc.keepalive_time_ms=1000"}
    environment.apply_to_server(environ)
    if is_ours:
        # What gRPC takes is one ping in 300 s.
        assert "grpc.keepalive_time_ms=330000," in environ[CHANNELS]
        assert environ[CHANNELS].count(",") == ours.count(",")
    else:
        assert environ == {CHANNELS: "grpc.keepalive_time_ms=1000"}
