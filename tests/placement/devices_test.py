"""Names of devices, as a user writes and reads them."""

import keras
import pytest
import tensorflow as tf

from tfdist import placement
from tfdist.pipeline import pipelined
from tfdist.placement import devices


@pytest.fixture
def second_worker(monkeypatch):
    """The second of workers that have two helpers each."""
    jobs = ["worker/replica:0/task:1"]
    jobs += [f"helper/replica:0/task:{task}" for task in (3, 2)]
    jobs += ["ps/replica:0/task:0"]
    known = [f"/job:{job}/device:CPU:0" for job in jobs]
    monkeypatch.setattr(devices, "available", lambda: known)
    own = tf.DeviceSpec.from_string(known[0])
    monkeypatch.setattr(devices, "_own", lambda: own)
    return known


def test_helpers_are_numbered_by_worker(second_worker):
    own, second, first, _ = second_worker
    assert devices.resolve("helper:0/CPU:0") == first
    assert devices.resolve("/helper:1/device:CPU:0") == second
    assert devices.resolve("/job:helper/task:3/CPU:0") == second
    assert devices.resolve("CPU:0") == own
    assert devices.short(first) == "helper:0/CPU:0"
    assert devices.short(second) == "helper:1/CPU:0"
    assert devices.short(own) == "worker:1/CPU:0"


def test_devices_of_servers_and_helpers_are_used_only_where_they_are_named(
    second_worker,
):
    own = second_worker[0]
    assert devices.of_this_process() == [own]
    assert pipelined.devices_of(1) == [own]
    with pytest.raises(ValueError, match="there are 1: worker:1/CPU:0"):
        pipelined.devices_of(2)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    assert set(placement.choose(model).placement.values()) == {own}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("helper:2/CPU:0", "one of the 2 helpers"),
        ("helper:0/CPU:1", "one of worker:1/CPU:0, helper:1/CPU:0, helper:0"),
        # Another worker's.
        ("/job:helper/task:0/CPU:0", "a device that exists"),
    ],
)
def test_a_helper_that_is_not_there_is_refused(second_worker, name, said):
    with pytest.raises(ValueError, match=said) as caught:
        devices.resolve(name, "placement['a']")
    assert f"placement['a']={name!r}" in str(caught.value)


def test_a_process_alone_has_no_helpers():
    with pytest.raises(ValueError, match="0 helpers .*--helpers_per_worker"):
        devices.resolve("helper:0/CPU:0")


def test_a_gpu_that_is_not_there_may_be_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ValueError, match=r"CUDA_VISIBLE_DEVICES='3'.*--env"):
        devices.resolve("GPU:1")
    with pytest.raises(ValueError, match="exists") as caught:
        devices.resolve("CPU:99")
    assert "CUDA" not in str(caught.value)
