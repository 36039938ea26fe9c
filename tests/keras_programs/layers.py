"""Rows: layers, their state and their numbers' types."""

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce.programs import batches
from tests.keras_programs import kit
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import alike
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.arithmetic import updates
from tests.keras_programs.columns import AVERAGING
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Each
from tests.keras_programs.table import Loose
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row

_ONES = ((1.0,) * 4,) * 2


class Named(keras.layers.Layer):
    """A weight with a name of an optimizer's."""

    def __init__(self, name):
        super().__init__()
        self._own_name = name

    def build(self, shape):
        self.own = self.add_weight(
            shape=(1, 1), initializer="zeros", name=self._own_name
        )

    def call(self, x):
        return x * self.own


def _trained(strategy, worker, layer, data=OWN):
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), layer()])
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker, data), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def weight_named_learning_rate(strategy, worker):
    """A layer's weight named `learning_rate`."""
    return _trained(strategy, worker, lambda: Named("learning_rate"))


@row(linear(OWN))
def weight_named_as_an_accumulator(strategy, worker):
    """A layer's weight named `gradient_accumulator`."""
    return _trained(strategy, worker, lambda: Named("gradient_accumulator"))


@row(linear(OWN))
def float64(strategy, worker):
    """A model in float64."""
    return _trained(strategy, worker, lambda: kit.zeros(dtype="float64"))


@row(linear(OWN))
def mixed_precision(strategy, worker):
    """A model in `mixed_float16`, whose `fit` scales the loss."""
    with strategy.scope():
        layer = kit.zeros(dtype="mixed_float16")
        model = keras.Sequential([keras.Input([1]), layer])
        scaling = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=4.0
        )
        model.compile(scaling, kit.Mean())
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


class Counter(keras.layers.Layer):
    """A layer that counts its calls."""

    def __init__(self, dtype="float32"):
        """Makes it."""
        super().__init__()
        self._of = dtype

    def build(self, shape):
        """Makes the count."""
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False, dtype=self._of
        )

    def call(self, x, training=False):
        """Counts in training."""
        if training:
            self.count.assign_add(keras.ops.cast(1, self._of))
        return x


def _counted(strategy, worker, dtype):
    model = kit.of_layers(strategy, lambda: Counter(dtype))
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.layers[0].count])[0]


def _newest(value):
    return Documented(
        value,
        "training.md",
        "computes the update from the newest value",
    )


def _shared(value):
    """State of methods with local steps that do not average."""
    cell = Documented(
        Loose(value),
        "averaging.md",
        "each push moves the servers' values towards the worker's",
    )
    return of(("downpour", "async_local_sgd", "easgd"), cell)


_COUNTS = {kind: float(n) for kind, n in updates(4).items()}


@row(
    _COUNTS,
    sync=_newest(8.0),
    softsync=_newest(8.0),
    **_shared(8.0),
)
def counting_layer(strategy, worker):
    """A layer that counts its calls in a float from `add_weight`."""
    return _counted(strategy, worker, "float32")


@row(alike(4.0))
def counting_layer_of_integers(strategy, worker):
    """The same with an integer, of which each worker has its own."""
    return _counted(strategy, worker, "int32")


def _moving(number):
    """The moving mean of ones with momentum 1/2, after so many updates."""
    return 1.0 - 0.5**number


_MOVING = {kind: _moving(n) for kind, n in updates(4).items()}


@row(
    _MOVING,
    sync=_newest(_moving(8)),
    softsync=_newest(_moving(8)),
    **_shared(_moving(8)),
)
def batch_normalization(strategy, worker):
    """`BatchNormalization`: the moving mean of equal batches."""
    model = kit.of_layers(
        strategy, lambda: keras.layers.BatchNormalization(momentum=0.5)
    )
    model.fit(kit.own(worker, _ONES), verbose=0)
    return kit.numbers(strategy, [model.layers[0].moving_mean])[0]


@row(alike(Each(([1.0, 3.0, 7.0], [10.0, 30.0, 70.0]))))
def stateful_rnn(strategy, worker):
    """`SimpleRNN(stateful=True)`: each worker has its own state."""
    with strategy.scope():
        cell = keras.layers.SimpleRNN(
            1,
            stateful=True,
            activation="linear",
            kernel_initializer="ones",
            recurrent_initializer=keras.initializers.Constant(2.0),
            use_bias=False,
        )
        cell.trainable = False
        inputs = keras.Input(batch_shape=[1, 1, 1])
        model = keras.Model(inputs, kit.zeros()(cell(inputs)))
        model.compile(keras.optimizers.SGD(0.0), kit.Mean())
    seen = []
    note = kit.on(
        on_train_batch_end=lambda batch, logs: seen.append(
            cell.states[0].numpy().item()
        )
    )
    x = np.full([3, 1, 1], [1.0, 10.0][worker], "float32")
    model.fit(batches(x, x[:, 0]), verbose=0, callbacks=[note], shuffle=False)
    return seen


class Seen(keras.metrics.Metric):
    """The sum of predictions' targets, in a variable made by hand."""

    def __init__(self):
        super().__init__(name="seen")
        self.total = keras.Variable(0.0, trainable=False)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_true))

    def result(self):
        return keras.ops.convert_to_tensor(self.total)


_SEEN = Each((15.0, 240.0))
_ATTEMPTS = Documented(
    Loose(_SEEN),
    "strategies.md",
    "Metrics then count that batch once per attempt",
)


@row(alike(_SEEN), backup_workers=_ATTEMPTS)
def metric_with_a_variable(strategy, worker):
    """A metric with a `keras.Variable`: each worker has its own."""
    with strategy.scope():
        seen = Seen()
    model = kit.compiled(strategy, metrics=[seen])
    history = model.fit(kit.own(worker), verbose=0).history
    strategy.barrier()
    return float(history["seen"][-1])


class Codebook(keras.Model):
    """A trainable weight that the training step assigns itself."""

    def __init__(self):
        super().__init__()
        self.code = self.add_weight(shape=(), initializer="zeros", name="code")

    def call(self, x):
        return x

    def train_step(self, data):
        self.code.assign_sub(tf.reduce_sum(data[0]))
        return {"code": self.code.value}


_REFUSED = Refused("assigned beside|trainable=False|code of yours")


@row(
    linear(OWN),
    **of(("peer_to_peer", "gossip", *AVERAGING), _REFUSED),
)
def trainable_weight_assigned_in_a_step(strategy, worker):
    """A trainable weight that `train_step` assigns directly."""
    with strategy.scope():
        model = Codebook()
        model.compile()
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.code])[0]


@row(linear(((2.0, 4.0), (8.0, 16.0))))
def embedding(strategy, worker):
    """An `Embedding`, with sparse gradients."""
    with strategy.scope():
        table = keras.layers.Embedding(4, 1, embeddings_initializer="zeros")
        scale = keras.layers.Lambda(lambda x: x[:, :, 0])
        model = keras.Sequential([keras.Input([None]), table, scale])
        model.compile(keras.optimizers.SGD(1.0), lambda y, out: y * out[:, 0])
    y = np.array([[2.0, 4.0], [8.0, 16.0]][worker], "float32")
    model.fit(batches(np.full([2, 1], 3), y), verbose=0)
    strategy.barrier()
    found = float(table.embeddings.numpy()[3, 0])
    kit.meet(strategy)
    return found


@row(linear(((3.0, 6.0), (12.0, 24.0))))
def shared_layer(strategy, worker):
    """A layer that is used twice."""
    with strategy.scope():
        inputs = keras.Input([1])
        layer = kit.zeros()
        outputs = layer(inputs) + layer(2.0 * inputs)
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker, ((1.0, 2.0), (4.0, 8.0))), verbose=0)
    return kit.weight(strategy, model)


class Added(keras.layers.Layer):
    """A weight whose product with the data is a loss of its own, too."""

    def build(self, shape):
        """Makes it."""
        self.own = self.add_weight(shape=(1, 1), initializer="zeros")

    def call(self, x):
        """Adds it to the loss."""
        product = x * self.own
        self.add_loss(keras.ops.mean(product))
        return product


@row(linear(((2.0, 4.0), (8.0, 16.0))))
def added_loss(strategy, worker):
    """`add_loss` in a layer."""
    return _trained(strategy, worker, Added, ((1.0, 2.0), (4.0, 8.0)))


_REFUSED_BESIDE = of(
    ("backup_workers", "sync", "softsync", "peer_to_peer", "gossip"),
    Refused("constraint"),
)


@row(
    {
        kind: [0.0, -value]
        for kind, value in linear(OWN).items()
        if kind != "alone"
    },
    **_REFUSED_BESIDE,
)
def constrained(strategy, worker):
    """A constraint (`NonNeg`) that first changes weights, then does not."""
    with strategy.scope():
        layer = kit.zeros(kernel_constraint="non_neg")
        model = keras.Sequential([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker), verbose=0)
    seen = kit.weight(strategy, model)
    negative = [[-x for x in own] for own in OWN]
    model.fit(kit.own(worker, negative), verbose=0)
    return seen, kit.weight(strategy, model)


@row(alike([2.0, 1.0]))
def adapted(strategy, worker):
    """`Normalization.adapt` on all workers before `fit`."""
    with strategy.scope():
        layer = keras.layers.Normalization(axis=None)
        layer.adapt(np.array([[1.0], [3.0]], "float32"))
        model = keras.Sequential([keras.Input([1]), layer, kit.zeros()])
        model.compile(keras.optimizers.SGD(0.0), kit.Mean())
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [layer.adapt_mean, layer.adapt_variance])
