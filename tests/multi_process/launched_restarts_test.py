"""A launched run whose tasks are killed is started again, and ends right.

Every gradient is one, and so is the learning rate: parameters that are not
minus the updates of their server show what was lost, or counted twice.
"""

import json
import os
import re
import signal

import pytest

from tests.cli.launched import Launched
from tests.waits import wait_until

pytestmark = pytest.mark.nightly

SCRIPT = """
import json
import os
import keras
from tests.multi_process import tasks
import tfdist

strategy = tfdist.AsyncStrategy(
    fault_tolerance=tfdist.FaultTolerance(
        start_timeout=120.0,
        server_timeout=120.0,
        snapshot_dir="{directory}/kept",
        snapshot_every=0.5,
    )
)
model = tasks.build_sum_of_weights(strategy)

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch % 20 == 19:
            print("twenty steps", flush=True)
        self.model.stop_training = os.path.exists("{directory}/stop")

model.fit(
    tasks.own_data(1.0), steps_per_epoch=10**6, verbose=0, callbacks=[Tell()]
)
strategy.barrier()
parts = model.layers[-1].parts
found = {{
    "updates": strategy.updates_applied(),
    "counts": strategy.gradient_counts(),
    "parts": [
        [part.value.shard, sorted(set(part.numpy().ravel().tolist()))]
        for part in parts
    ],
}}
print("found", json.dumps(found), flush=True)
"""


def test_a_worker_and_a_server_are_killed_and_training_ends_right(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(directory=tmp_path))
    flags = ["--num_ps=2", "--num_workers=2", "--max_restarts=2"]
    with Launched(*flags, "--grace_seconds=120", script) as run:
        pids = {
            label: int(run.expect(rf"{label}: pid (\d+)")[1])
            for label in ("ps 0", "ps 1", "worker 0", "worker 1")
        }
        trained(run)
        os.kill(pids["worker 1"], signal.SIGKILL)
        run.expect(r"worker 1 was ended by SIGKILL .* restart 1 of 2 in 0.5 s")
        run.expect(r"worker 1: pid \d+")
        run.expect(r"\[worker 1\] twenty steps")
        os.kill(pids["ps 1"], signal.SIGKILL)
        run.expect(r"ps 1 was ended by SIGKILL .* restart 1 of 2 in 0.5 s")
        run.expect(r"ps 1: pid \d+")
        went_on = r"goes on after [\d.]+ s without /job:ps/task:1"
        for _ in range(2):
            run.expect(went_on)
        trained(run)
        (tmp_path / "stop").touch()
        status, text = run.finish()
    assert status == 0, text
    reports = [json.loads(found) for found in re.findall(r"found (.*)", text)]
    assert len(reports) == 2
    for report in reports:
        assert report["updates"] == reports[0]["updates"]
        for server, values in report["parts"]:
            assert values == [-1.0 * report["updates"][server]]
        assert {server for server, _ in report["parts"]} == {0, 1}
    # Those of both lives of the worker.
    for counts in reports[0]["counts"].values():
        assert counts["pushed"] == counts["accepted"] >= 40
    # Training is over: servers have ended by themselves, and keep nothing.
    for label in ("ps 0", "ps 1"):
        assert f"{label} is done" in text
    assert list((tmp_path / "kept").iterdir()) == []


def trained(run):
    """Waits until both workers have told of steps."""
    for label in ("worker 0", "worker 1"):
        run.expect(rf"\[{label}\] twenty steps")


EPOCHS = """
import json
import os
import time
import keras
import numpy as np
import tfdist

strategy = tfdist.AsyncStrategy()
worker = strategy.cluster.worker_id
with strategy.scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

def wait_for(name):
    while not os.path.exists("{directory}/" + name):
        time.sleep(0.01)

class Tell(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if worker == 1 and epoch == 2:
            # Long enough for a heartbeat to tell of it.
            wait_for("killed")
    def on_epoch_end(self, epoch, logs=None):
        if worker == 0 and epoch == 4:
            open("{directory}/waits", "w").close()
            wait_for("back")

x = np.ones([40, 1], np.float32)
for _ in range({calls_before}):
    model.fit(x, x, batch_size=2, epochs=2, verbose=0)
model.fit(x, x, batch_size=2, epochs=8, verbose=0, callbacks=[Tell()])
strategy.barrier()
if worker == 0:
    counts = strategy.gradient_counts()
    pushed = [counts[name]["pushed"] for name in sorted(counts)]
    print("pushed", json.dumps(pushed), flush=True)
"""


@pytest.mark.parametrize(
    ("number", "calls_before"),
    [(signal.SIGKILL, 0), (signal.SIGTERM, 0), (signal.SIGKILL, 1)],
)
def test_a_worker_that_a_signal_ends_goes_on_where_the_cluster_is(
    tmp_path, number, calls_before
):
    script = tmp_path / "train.py"
    script.write_text(
        EPOCHS.format(directory=tmp_path, calls_before=calls_before)
    )
    with Launched("--grace_seconds=120", script) as run:
        pid = int(run.expect(r"worker 1: pid (\d+)")[1])
        run.expect(r"\[worker 1\] epoch 2$")
        wait_until((tmp_path / "waits").exists, lambda: "the chief is ahead")
        os.kill(pid, number)
        (tmp_path / "killed").touch()
        run.expect(f"worker 1 was ended by {number.name}.*; restart 1 of 3")
        run.expect(r"\[worker 1\] epoch [45]$")
        run.expect(r"\[worker 0\] .*worker/task:1 is back after \d+ s: it goes")
        (tmp_path / "back").touch()
        status, text = run.finish()
    assert status == 0, text
    (chief, other) = json.loads(re.search(r"pushed (.*)", text)[1])
    # In an earlier call of `fit` both make two epochs, once.
    before = calls_before * 2 * 10
    assert chief == before + 8 * 10
    # Two epochs before it was killed, and those after the chief's fourth.
    assert before + 5 * 10 <= other <= before + 6 * 10
    said = re.search(
        r"goes on at epoch (\d+), batch (\d+) of its data\. By its last "
        r"heartbeat it had come to epoch (\d+), batch (\d+): about (\d+) "
        "batches are left out",
        text,
    )
    epoch, batch, told_epoch, told_batch, left_out = map(int, said.groups())
    assert left_out == 10 * (epoch - told_epoch) + batch - told_batch > 0


EXITS = """
import os
import sys
import time
import traceback
import keras
import numpy as np
import tfdist

strategy = tfdist.AsyncStrategy()
worker = strategy.cluster.worker_id
with strategy.scope():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

class Fail(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        print("epoch", epoch, flush=True)
        if worker == 1 and os.path.exists("{directory}/failed"):
            open("{directory}/back", "w").close()
        elif worker == 1 and epoch == 2:
            open("{directory}/failed", "w").close()
            raise OSError("no space left")
    def on_epoch_end(self, epoch, logs=None):
        while worker == 0 and epoch == 4:
            if os.path.exists("{directory}/back"):
                break
            time.sleep(0.01)

x = np.ones([40, 1], np.float32)
try:
    model.fit(x, x, batch_size=2, epochs=8, verbose=0, callbacks=[Fail()])
except OSError:
    traceback.print_exc()
    sys.exit(1)
"""


def test_a_worker_that_ends_with_sys_exit_has_failed(tmp_path):
    """It goes on where the cluster is, and not at the end of its own `fit`."""
    script = tmp_path / "train.py"
    script.write_text(EXITS.format(directory=tmp_path))
    with Launched("--grace_seconds=120", script) as run:
        run.expect("status 1: OSError: no space left .*; restart 1 of 3 in 0.5")
        status, text = run.finish()
    assert status == 0, text
    epochs = re.findall(r"\[worker 1\] epoch (\d)", text)
    assert epochs[:3] == ["0", "1", "2"]
    assert epochs[3] in "2345" and epochs[-1] == "7"
    assert "worker/task:1 has failed" in text
    assert "ps 0 is done" in text
