"""Two groups, each a server and a worker, which teach each other.

tfdist launch --num_groups=2 --num_ps=1 --num_workers=1 THIS
"""

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.AsyncStrategy()  # Before the first data set.
group = tfdist.codistillation.Group.from_tf_config()
keras.utils.set_random_seed(1 + group.index)  # Groups must not begin alike.

x = np.random.default_rng(0).normal(size=(1024, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
train = tf.data.Dataset.from_tensor_slices((x, y))
train = group.shard(train).shuffle(1024, seed=1).batch(16)

with strategy.scope():
    student = keras.Sequential(
        [
            keras.Input([4]),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(2, "softmax"),
        ]
    )
    model = tfdist.codistillation.Codistilled(student, burn_in_steps=64)
    model.compile(
        "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
exchange = tfdist.codistillation.SharedDirectory("exchange")
model.fit(
    train,
    epochs=6,
    callbacks=[
        tfdist.callbacks.ClusterMonitor(),
        # After the monitor, which waits for the group's workers at the end.
        tfdist.codistillation.Codistillation(exchange, exchange_every=16),
    ],
    verbose=2,
)
student.save(f"student-{group.index}.keras")  # Each group has a chief.
