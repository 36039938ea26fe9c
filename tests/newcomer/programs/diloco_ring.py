"""DiLoCo without servers: tfdist launch --num_ps=0 --num_workers=2 THIS."""

import keras
import numpy as np

import tfdist

strategy = tfdist.DiLoCoStrategy(period=8, communication="ring")
random = np.random.default_rng(0)
x = random.normal(size=(1024, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(0.01),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
model.fit(x, y, batch_size=16, epochs=4, verbose=2)
steps = int(model.optimizer.iterations)
print(f"steps: {steps}, updates: {strategy.updates_applied()}")
loss, accuracy = model.evaluate(x, y, verbose=0)
print(f"loss: {loss:.6f}, accuracy: {accuracy:.6f}")
model.save("diloco.keras")
