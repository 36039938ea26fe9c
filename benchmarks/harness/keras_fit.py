"""`model.fit` of a tiny model, with whatever strategy is current."""

import time

from harness import own_batches

BATCH_SIZE = 32
FEATURES = 32
CLASSES = 10
UNITS = 64


def plain(optimizers):
    """Builds plain Keras; see `_measure`."""
    import tensorflow as tf

    return _measure(tf.distribute.get_strategy(), optimizers)


def under_async_strategy(optimizers):
    """Builds `tfdist.AsyncStrategy`, of `TF_CONFIG`; see `_measure`."""
    import tfdist

    return _measure(tfdist.AsyncStrategy(), optimizers)


def under_peer_to_peer(optimizers):
    """Builds `tfdist.PeerToPeerStrategy`, of `TF_CONFIG`; see `_measure`."""
    import tfdist

    return _measure(
        tfdist.PeerToPeerStrategy("threshold(tau=0.03)"), optimizers
    )


def _measure(strategy, optimizers):
    """Builds and compiles one model per optimizer.

    Args:
        strategy: a `tf.distribute.Strategy`.
        optimizers: list of names that Keras knows.

    Returns:
        A callable `(optimizer, steps)` that trains for five epochs, of so many
        steps without the first, and gives seconds per step of the last four,
        and CPU seconds of the process.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    images = tf.random.normal([16 * BATCH_SIZE, FEATURES])
    labels = tf.random.uniform([16 * BATCH_SIZE], 0, CLASSES, tf.int64)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.batch(BATCH_SIZE, drop_remainder=True).cache().repeat()
    data = own_batches.whole(data)

    def build(optimizer):
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input([FEATURES]),
                    keras.layers.Dense(UNITS, activation="relu"),
                    keras.layers.Dense(UNITS, activation="relu"),
                    keras.layers.Dense(CLASSES),
                ]
            )
            model.compile(
                optimizer=keras.optimizers.get(optimizer),
                loss=keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True
                ),
                metrics=["accuracy"],
                jit_compile=False,
            )
        return model

    models = {name: build(name) for name in optimizers}

    moments = []

    def note():
        moments.append((time.perf_counter(), time.process_time()))

    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: note() if epoch == 1 else None,
        on_epoch_end=lambda epoch, logs: note() if epoch == 4 else None,
    )

    def measure(optimizer, steps):
        moments.clear()
        models[optimizer].fit(
            data,
            epochs=5,
            steps_per_epoch=steps // 4,
            verbose=0,
            callbacks=[clock],
        )
        (began, cpu_began), (ended, cpu_ended) = moments
        steps = steps // 4 * 4
        return (ended - began) / steps, (cpu_ended - cpu_began) / steps

    return measure
