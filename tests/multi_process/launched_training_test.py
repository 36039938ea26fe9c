"""The launcher with tasks that train: nothing outlives it."""

import signal

import pytest

from tests.cli.launched import Launched
from tests.cli.launched import assert_gone
from tests.cli.launched import runs

SCRIPT = """
import numpy as np
import keras
import tfdist

strategy = tfdist.AsyncStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("adam", "mse")

class Tell(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            print("is training", flush=True)

x = np.ones([64, 4], np.float32)
model.fit(x, x[:, :1], epochs={epochs}, verbose=0, callbacks=[Tell()])
strategy.barrier()
print("updates", strategy.updates_applied(), flush=True)
"""


@pytest.mark.nightly
def test_a_signal_to_the_launcher_ends_servers_and_workers(tmp_path):
    """One that tasks could ignore; of others: tests/cli/orphans_test.py."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(epochs=10**9))
    with Launched("--num_ps=1", "--num_workers=1", script) as run:
        run.expect(r"\[worker \d\] is training")
        processes = run.descendants()
        # Two tasks and the guard, at least.
        assert len(processes) >= 3 and all(map(runs, processes))
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 128 + signal.SIGTERM
        assert_gone(processes)


@pytest.mark.smoke
def test_servers_end_by_themselves_with_status_0(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(epochs=2))
    flags = ["--num_ps=1", "--num_workers=2", "--grace_seconds=60"]
    with Launched(*flags, script) as run:
        status, text = run.finish()
    assert status == 0, text
    # 64 examples in batches of 32, two epochs, shared by two workers.
    assert text.count("updates [4]") == 2
    assert "ps 0 is done" in text
    assert "terminating" not in text and "not ended by itself" not in text
