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
model.fit(x, x[:, :1], epochs=10**9, verbose=0, callbacks=[Tell()])
"""


@pytest.mark.nightly
def test_a_signal_to_the_launcher_ends_servers_and_workers(tmp_path):
    """One that tasks could ignore; of others: tests/cli/orphans_test.py."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Launched("--num_ps=1", "--num_workers=1", script) as run:
        run.expect(r"\[worker \d\] is training")
        processes = run.descendants()
        # Two tasks and the guard, at least.
        assert len(processes) >= 3 and all(map(runs, processes))
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(60) == 128 + signal.SIGTERM
        assert_gone(processes)
