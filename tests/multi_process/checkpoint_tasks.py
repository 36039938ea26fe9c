"""What the tasks of clusters do whose state is saved while it changes."""

import keras
import numpy as np

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

# Of parameters, of what layers count, and of the optimizer's step counter:
# each step of any worker changes all of them by one.
PARTS = len(tasks.SHAPES)


def _save(model, k):
    path = f"saved{k}.weights.h5"
    model.save_weights(path)
    plain = keras.Sequential([keras.Input([1]), tasks.SumOfWeights()])
    plain.compile(keras.optimizers.SGD(1.0), loss=tasks.first_output)
    plain.load_weights(path)
    found = [-np.ravel(v) for v in plain.trainable_variables]
    found += [np.ravel(v) for v in plain.non_trainable_variables]
    found.append(np.ravel(plain.optimizer.iterations))
    return sorted({float(x) for v in found for x in v})


class _SaveOften(keras.callbacks.Callback):
    def __init__(self, every):
        super().__init__()
        self.every = every
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every == 0:
            self.found.append(_save(self.model, batch))


def save_while_others_train(saves):
    """The chief saves its model again and again, the others train on.

    Args:
        saves: how often.
    """
    strategy = tfdist.AsyncStrategy(start_timeout=60.0)
    model = tasks.build_sum_of_weights(strategy)
    data = tasks.own_data(1.0)
    if strategy.cluster.is_chief:
        callback = _SaveOften(2)
        model.fit(
            data, steps_per_epoch=2 * saves, verbose=0, callbacks=[callback]
        )
        handshake.report(found=callback.found)
        open("over", "w").close()
        return

    class UntilOver(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = handshake.told("over")

    model.fit(data, steps_per_epoch=10**6, verbose=0, callbacks=[UntilOver()])
