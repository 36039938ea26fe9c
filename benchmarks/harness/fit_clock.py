"""Seconds per step of `model.fit`."""

import time


def timed(model, data):
    """Returns the measure of a model.

    Args:
        model: a compiled `keras.Model`.
        data: endless batches.

    Returns:
        A callable of a number of steps, at least 2, which takes them in `fit`;
        it gives the seconds of each but the first.
    """
    import keras

    class Clock(keras.callbacks.Callback):
        """Notes when each step ends."""

        def on_train_begin(self, logs=None):
            """Begins."""
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            """Notes the time."""
            self.ends.append(time.perf_counter())

    clock = Clock()

    def measure(steps):
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return (clock.ends[-1] - clock.ends[0]) / (steps - 1)

    return measure
