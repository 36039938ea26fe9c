"""What the workers of clusters under test run: logistic regression."""

import os
import traceback

import keras
import numpy as np

from tests.multi_process import handshake
import tfdist
from tfdist.cluster import member_table

EXAMPLES, FEATURES, CLASSES = 96, 5, 3
DECAY = 2.0**-7  # In float32 as well: so Keras has it.


def data():
    """Features and labels, float64 and int64, the same on all workers."""
    random = np.random.default_rng(3)
    x = random.normal(size=(EXAMPLES, FEATURES))
    y = np.argmax(x[:, :CLASSES] + random.normal(size=(EXAMPLES, CLASSES)), 1)
    return x, y


def fit(model, epochs, **arguments):
    """Makes iterations on `data`, two examples at once; returns the history."""
    x, y = data()
    return model.fit(
        x,
        y,
        batch_size=2,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **arguments,
    ).history


def loss(flat):
    """The mean loss and its gradient, in NumPy."""
    x, y = data()
    weights = flat[: FEATURES * CLASSES].reshape(FEATURES, CLASSES)
    logits = x @ weights + flat[FEATURES * CLASSES :]
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    value = -logs[np.arange(EXAMPLES), y].mean()
    slope = (np.exp(logs) - np.eye(CLASSES)[y]) / EXAMPLES
    gradient = np.concatenate(
        [(x.T @ slope + 2 * DECAY * weights).ravel(), slope.sum(0)]
    )
    return value + DECAY * np.sum(weights**2), gradient


def make_model(strategy, kind=keras.Model, **settings):
    """A compiled model, whose weights begin at 0; for `floatx` of float64.

    Args:
        strategy: the strategy.
        kind: class of the model.
        **settings: of `LBFGS`.
    """
    with strategy.scope():
        inputs = keras.Input((FEATURES,))
        outputs = keras.layers.Dense(
            CLASSES,
            kernel_initializer="zeros",
            kernel_regularizer=keras.regularizers.L2(DECAY),
        )(inputs)
        model = kind(inputs, outputs)
        settings.setdefault("memory", 4)
        settings.setdefault("gradient_tolerance", 1e-8)
        settings.setdefault("value_tolerance", 0.0)
        model.compile(
            tfdist.sandblaster.LBFGS(**settings),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            run_eagerly=kind is Held,
        )
    return model


class Held(keras.Model):
    """A model of which some steps wait until the test says so.

    Batches that are computed twice, to see whether that is all the same, do
    not count.

    Attributes:
        holds_before: numbers of the steps, from 0.
    """

    holds_before = ()
    _steps = 0

    def train_step(self, data):
        """As Keras's."""
        callers = (frame for frame, _ in traceback.walk_stack(None))
        if any(one.f_code.co_name == "_check_step" for one in callers):
            return super().train_step(data)
        if self._steps in self.holds_before:
            number = list(self.holds_before).index(self._steps)
            print("holding", flush=True)
            again = f" {number}" if number else ""
            handshake.wait_for(f"go on {os.environ['TASK_LABEL']}{again}")
        self._steps += 1
        return super().train_step(data)


def weights_of(model):
    """All weights, a list of floats."""
    return np.concatenate([w.ravel() for w in model.get_weights()]).tolist()


def serve(directory=None, every=0.01):
    """Is a parameter server that keeps snapshots, if it has a directory."""
    tfdist.SandblasterStrategy(
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, snapshot_dir=directory, snapshot_every=every
        )
    )


def train(
    portions_per_worker=8,
    epochs=60,
    holds=None,
    server_timeout=100.0,
    before=0,
    lost_after=member_table.LOST_AFTER_SECONDS,
):
    """Trains to the minimum, and reports.

    Args:
        portions_per_worker: of the strategy.
        epochs: at most.
        holds: by label of a task the step before which it waits, or a list.
        server_timeout: of the strategy.
        before: epochs of a call of `fit` before, to which no hold applies.
        lost_after: seconds without a heartbeat after which a chief is gone.
    """
    member_table.LOST_AFTER_SECONDS = lost_after
    keras.config.set_floatx("float64")
    strategy = tfdist.SandblasterStrategy(
        portions_per_worker=portions_per_worker,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0,
            worker_timeout=4.0,
            server_timeout=server_timeout,
        ),
        seed=1,
    )
    model = make_model(strategy, Held)
    x, y = data()
    if before:
        model.fit(x, y, batch_size=2, epochs=before, shuffle=False, verbose=0)
        model._steps = 0
    own = (holds or {}).get(os.environ["TASK_LABEL"], ())
    model.holds_before = (own,) if isinstance(own, int) else own
    history = model.fit(
        x, y, batch_size=2, epochs=epochs, shuffle=False, verbose=0
    )
    handshake.report(
        weights=weights_of(model),
        iterations=strategy.iterations,
        examples=[one["totals"][1] for one in strategy._training.iterations],
        counts=strategy.portion_counts(),
        recoveries=[list(one.servers) for one in strategy.recoveries],
        losses=history.history["loss"],
        accuracies=history.history["accuracy"],
    )


def two_fits(held):
    """Two calls of `fit`, of two iterations each; reports both.

    Args:
        held: label of the task that waits in its second step.
    """
    keras.config.set_floatx("float64")
    strategy = tfdist.SandblasterStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0), seed=1
    )
    model = make_model(strategy, Held)
    if os.environ["TASK_LABEL"] == held:
        model.holds_before = (1,)
    x, y = data()
    found = []
    for _ in range(2):
        history = model.fit(
            x, y, batch_size=2, epochs=2, shuffle=False, verbose=0
        )
        found.append([history.history["loss"], weights_of(model)])
    handshake.report(fits=found)
