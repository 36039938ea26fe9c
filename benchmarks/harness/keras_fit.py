"""`model.fit` of a tiny model, with whatever strategy is current."""

import time

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


def _measure(strategy, optimizers):
    """Builds and compiles one model per optimizer.

    Args:
        strategy: a `tf.distribute.Strategy`.
        optimizers: list of names that Keras knows.

    Returns:
        A callable `(optimizer, steps)` that trains for one epoch of so many
        steps and gives seconds per step.
    """
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    images = tf.random.normal([16 * BATCH_SIZE, FEATURES])
    labels = tf.random.uniform([16 * BATCH_SIZE], 0, CLASSES, tf.int64)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    data = data.batch(BATCH_SIZE, drop_remainder=True).cache().repeat()
    data = data.with_options(options)

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

    def measure(optimizer, steps):
        started = time.perf_counter()
        models[optimizer].fit(data, steps_per_epoch=steps, verbose=0)
        return (time.perf_counter() - started) / steps

    return measure
