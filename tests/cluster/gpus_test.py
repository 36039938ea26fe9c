"""Servers take no GPU. There is none here: TensorFlow's answers are made up."""

import types

import pytest
import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.cluster import bare_server
from tfdist.cluster import gpus
from tfdist.cluster import server

SPEC = {"worker": ["a:1"], "ps": ["b:1"], "helper": ["c:1"]}
SERVER = ClusterConfig(spec=SPEC, task_type="ps", task_index=0)
WORKER = ClusterConfig(spec=SPEC, task_type="worker", task_index=0)


def test_a_server_that_cannot_do_without_a_gpu_warns(monkeypatch, caplog):
    def set_visible_devices(devices, kind):
        assert (devices, kind) == ([], "GPU")
        raise RuntimeError("cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible_devices)
    gpus.hide(SERVER)
    assert "task:0 serves and needs no GPU" in caplog.text


@pytest.mark.parametrize(
    "serve",
    [
        lambda: server.serve(SERVER, start_timeout=1.0),
        lambda: bare_server.serve(SERVER, 1.0),
    ],
    ids=["server", "bare_server"],
)
def test_a_server_hides_gpus_before_it_begins(monkeypatch, serve):
    def hide(config):
        raise InterruptedError(config.task_name)

    monkeypatch.setattr(gpus, "hide", hide)
    monkeypatch.setattr(server.preemption, "install", lambda exits: None)
    monkeypatch.setenv("TF_GRPC_DEFAULT_OPTIONS", "")
    with pytest.raises(InterruptedError, match="task:0"):
        serve()


def test_without_gpus_a_server_may_come_late(caplog):
    tf.constant(0)
    gpus.hide(SERVER)
    assert "needs no GPU" not in caplog.text


@pytest.mark.parametrize(
    ("jobs", "warns"),
    [((), False), (("helper",), True), (("worker", "helper"), False)],
    ids=str,
)
def test_helpers_gpus_attract_what_has_no_device(
    monkeypatch, caplog, jobs, warns
):
    devices = [
        types.SimpleNamespace(name=f"/job:{job}/replica:0/task:0/device:GPU:0")
        for job in jobs
    ]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: devices)
    gpus.warn_of_helpers(WORKER)
    assert ("helper/replica:0/task:0/device:GPU:0" in caplog.text) is warns
