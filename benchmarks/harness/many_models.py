"""A process that builds, fits and deletes one model after the other."""

import contextlib
import gc


def worker(strategy, units):
    """Builds a worker without a model.

    Args:
        strategy: name of one of tfdist's strategies, made without arguments.
        units: of each of two hidden layers.

    Returns:
        A callable without arguments that builds a model, fits it with Adam,
        deletes it, and gives the number of variables that are left.
    """
    import tfdist

    strategy = getattr(tfdist, strategy)()
    live = _live(strategy.scope, units)

    def live_and_count():
        live()
        return len(list(strategy._runtime.store.variables))  # noqa: SLF001

    return live_and_count


def plain(units):
    """Builds the same without tfdist: what Keras itself keeps.

    Args:
        units: of each of two hidden layers.

    Returns:
        A callable without arguments that does the same with a model.
    """
    return _live(contextlib.nullcontext, units)


def _live(scope, units):
    import keras
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(128, 256)).astype("float32")
    y = x[:, :1]

    def live():
        with scope():
            model = keras.Sequential([keras.Input((256,))])
            for _ in range(2):
                model.add(keras.layers.Dense(units, activation="relu"))
            model.add(keras.layers.Dense(1))
            model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
        model.fit(x, y, batch_size=16, verbose=0)
        model.evaluate(x, y, batch_size=64, verbose=0)
        del model
        keras.backend.clear_session()
        gc.collect()

    return live
