"""A script for the launcher: a table that is evaluated beside its training."""

import json
import os
import pathlib
import sys

import keras
import numpy as np

import tfdist

ROWS = 500
MODE, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[2])
task = json.loads(os.environ["TF_CONFIG"])["task"]

strategy = tfdist.AsyncStrategy(
    table_bytes=1, fault_tolerance=tfdist.FaultTolerance(start_timeout=120.0)
)
rng = np.random.default_rng(1)
x = rng.integers(0, ROWS, (256, 4))
y = rng.normal(size=(256, 1)).astype("float32")
with strategy.scope():
    table = keras.layers.Embedding(ROWS, 2)
    layers = [table, keras.layers.Flatten(), keras.layers.Dense(1)]
    if MODE == "built":
        layers.insert(0, keras.Input((4,), dtype="int64"))
    model = keras.Sequential(layers)
    model.compile("adam", "mse", metrics=["mae"])
if strategy.cluster.is_evaluator:
    evaluator = tfdist.SidecarEvaluator(
        model, data=(x, y), interval_seconds=0.2
    )
    metrics = evaluator.start()
else:
    model.fit(x, y, batch_size=16, epochs=3, verbose=0)
    strategy.barrier()
    metrics = model.evaluate(x, y, verbose=0, return_dict=True)
strategy.export_tables(DIRECTORY / f"{task['type']}-{task['index']}")
model.save(DIRECTORY / f"{task['type']}-{task['index']}.keras")
report = {
    "metrics": metrics,
    "predicted": model.predict(x, verbose=0).tolist(),
    "rows": np.asarray(table(np.arange(ROWS))).tolist(),
}
path = DIRECTORY / f"{task['type']}-{task['index']}.json"
path.write_text(json.dumps(report))
