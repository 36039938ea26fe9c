"""When each step of `model.fit` ends."""

import time


def timed(model, data):
    """Returns the measure of a model: seconds of each step but the first.

    Args:
        model: a compiled `keras.Model`.
        data: endless batches.

    Returns:
        A callable of a number of steps, at least 2, which takes them in `fit`.
    """
    train = ends_of(model, data)

    def measure(steps):
        ends = train(steps)
        return (ends[-1] - ends[0]) / (steps - 1)

    return measure


def ends_of(model, data):
    """As `timed`; the callable gives when each step ended, in seconds."""
    import keras

    class Clock(keras.callbacks.Callback):
        """Notes when each step ends."""

        def on_train_begin(self, logs=None):
            """Begins."""
            self.ends = []

        def on_train_batch_end(self, batch, logs=None):
            """Notes the time."""
            self.ends.append(time.monotonic())

    clock = Clock()

    def train(steps):
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock.ends

    return train
