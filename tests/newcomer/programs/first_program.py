"""Trains a classifier: tfdist launch --num_ps=1 --num_workers=2 THIS."""

import keras
import numpy as np

import tfdist

strategy = tfdist.AsyncStrategy()
random = np.random.default_rng(0)  # Every worker has to see the same data.
x = random.normal(size=(512, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
with strategy.scope():
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input([4]), *layers])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, batch_size=16, epochs=5, verbose=2)
strategy.barrier()  # The others may still train.
if strategy.cluster.is_chief:
    print("updates:", strategy.updates_applied())
    model.evaluate(x, y, verbose=2)
model.save("first.keras")  # The chief's; other workers leave it to the chief.
