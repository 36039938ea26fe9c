"""A worker is killed where a call of `fit` begins or ends, and comes back.

Each gradient is one, and so is the learning rate: the weight says how many of
them there are. No gradient is made twice, whoever dies between two of them,
and who lives makes all of its own. Where the others end a call before who died
is back, the rest of its data is nobody's.
"""

import json
import re

import pytest

from tests.cli.launched import Launched

pytestmark = pytest.mark.nightly

BATCHES, EPOCHS = 4, (3, 2)
SCRIPT = """
import json
import os
import signal
import time
import keras
import numpy as np
import tensorflow as tf
from tests.all_reduce import programs
import tfdist

os.chdir({directory!r})
strategy = tfdist.AsyncStrategy()
worker = strategy.cluster.worker_id
with strategy.scope():
    model = programs.linear()


if os.path.exists("dead"):
    open("back", "w").close()


def seam(name):
    if worker != {worker}:
        # It would end without the other one.
        while name == {waits_at!r} and not os.path.exists("back"):
            time.sleep(0.05)
    elif name == {seam!r} and not os.path.exists("dead"):
        # A heartbeat has told where it is.
        time.sleep(2.5)
        open("dead", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


class Seams(keras.callbacks.Callback):
    def __init__(self, call, epochs):
        super().__init__()
        self.call, self.last = call, epochs - 1

    def on_train_begin(self, logs=None):
        seam(f"call {{self.call}} begins")

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.last:
            seam(f"call {{self.call}} is about to end")


for call, epochs in enumerate({epochs}, 1):
    callbacks = [Seams(call, epochs)]
    if {has_backup}:
        backup = keras.callbacks.BackupAndRestore(f"backup{{call}}")
        callbacks.insert(0, backup)
    model.fit(
        programs.batches([1.0] * {batches}),
        epochs=epochs,
        callbacks=callbacks,
        verbose=0,
    )
    seam(f"call {{call}} has ended")
strategy.barrier()
model.save("model.keras")
if worker == 0:
    saved = keras.saving.load_model("model.keras", compile=False)
    found = [-float(m.get_weights()[0].sum()) for m in (model, saved)]
    counts = [c["accepted"] for c in strategy.gradient_counts().values()]
    print("found", json.dumps([*found, *strategy.updates_applied(), counts]))
"""
# Where the one that lives waits, if not at the same seam: a worker comes to the
# second call when the chief has begun it.
WAITS_AT = {("call 2 begins", 1): "call 2 is about to end"}
SEAMS = [
    # Where and who. Each with a backup and without.
    ("call 1 begins", 0),
    ("call 1 is about to end", 1),
    ("call 1 is about to end", 0),
    ("call 1 has ended", 1),
    ("call 2 begins", 1),
    ("call 2 is about to end", 0),
    ("call 2 has ended", 0),
]


@pytest.mark.parametrize("has_backup", [False, True], ids=["", "backup"])
@pytest.mark.parametrize(("seam", "worker"), SEAMS)
def test_what_is_saved_has_each_gradient_once(
    tmp_path, seam, worker, has_backup
):
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.format(
            directory=str(tmp_path),
            worker=worker,
            seam=seam,
            waits_at=WAITS_AT.get((seam, worker), seam),
            has_backup=has_backup,
            epochs=EPOCHS,
            batches=BATCHES,
        )
    )
    flags = ["--num_ps=1", "--num_workers=2", "--max_restarts=1"]
    with Launched(*flags, "--grace_seconds=120", script) as run:
        status, text = run.finish()
    assert status == 0, text
    assert f"worker {worker} was ended by SIGKILL" in text
    (found,) = re.findall(r"found (.*)", text)
    weight, saved, updates, of_workers = json.loads(found)
    assert weight == saved == updates == sum(of_workers), text
    assert of_workers[1 - worker] == BATCHES * sum(EPOCHS) >= of_workers[worker]
