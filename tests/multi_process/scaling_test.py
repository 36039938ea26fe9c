"""A launched cluster that trains while workers come and go."""

import os
import re

import pytest

from tests.cli.launched import Launched
from tfdist.cli import control_socket

pytestmark = pytest.mark.nightly

SCRIPT = """
import os
import time
import keras
import numpy as np
import tensorflow as tf
import tfdist
from tfdist.synchronization import Sync

strategy = tfdist.ParameterServerStrategy(synchronization=Sync())
with strategy.scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch % 10 == 9:
            print("ten steps", flush=True)
        time.sleep(0.02)
        self.model.stop_training = os.path.exists("{stop}")

data = tf.data.Dataset.from_tensors((np.ones([2, 1]), np.ones([2, 1])))
model.fit(data.repeat(), steps_per_epoch=10**6, verbose=0, callbacks=[Tell()])
strategy.barrier()
if strategy.cluster.is_chief:
    print("counts", strategy.gradient_counts(), flush=True)
"""


def test_workers_come_and_go_while_a_launched_cluster_trains(
    tmp_path, monkeypatch
):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    stop = tmp_path / "stop"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(stop=stop))
    flags = ["--num_workers=1", "--max_workers=2", "--grace_seconds=60"]
    with Launched(*flags, script) as run:
        pid = run.process.pid
        run.expect(r"\[worker 0\] ten steps")
        assert control_socket.ask(pid, {"workers": 2}) == "worker 1 started"
        run.expect(r"\[worker 1\] ten steps")
        assert control_socket.ask(pid, {"workers": 1}) == "worker 1 leaves"
        run.expect("worker 1 has left")
        run.expect(r"\[worker 0\] ten steps")
        run.expect(r"\[worker 0\] ten steps")
        stop.touch()
        status, text = run.finish()
    assert status == 0, text
    # Servers wait neither for who has left nor for their 60 seconds.
    assert "ps 0 is done" in text and "not been seen" not in text
    (found,) = re.findall(r"counts (.*)", text)
    for counts in eval(found).values():
        assert counts["pushed"] == counts["accepted"] + counts["dropped"] > 9
    assert not os.listdir(runtime / "tfdist")
