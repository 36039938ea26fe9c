"""Rows: calls of `fit`, and loops of one's own."""

import keras
import numpy as np
import tensorflow as tf

from tests.keras_programs import kit
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import alike
from tests.keras_programs.arithmetic import fetched_over
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.arithmetic import scaled
from tests.keras_programs.arithmetic import together
from tests.keras_programs.columns import RINGS
from tests.keras_programs.table import Loose
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row

_ONCE = linear(OWN)
_SECOND = ((256.0, 512.0), (1024.0, 2048.0))
_UNEVEN = ((1.0, 2.0, 4.0), (8.0,))
_OTHER_WAY = ((16.0,), (32.0, 64.0, 128.0))


@row(_ONCE)
def one_fit(strategy, worker):
    """One `fit`."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(together(_ONCE, linear(OWN, _SECOND)))
def two_fits(strategy, worker):
    """Two calls of `fit`, and the weights between them."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    seen = kit.weight(strategy, model)
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return seen, kit.weight(strategy, model)


@row(linear(_SECOND, _SECOND, _SECOND))
def three_epochs(strategy, worker):
    """Several epochs; each worker's `History` has all of them."""
    model = kit.compiled(strategy)
    history = model.fit(kit.own(worker, _SECOND), epochs=3, verbose=0)
    assert history.epoch == [0, 1, 2]
    return kit.weight(strategy, model)


@row(linear(_UNEVEN, _OTHER_WAY))
def uneven_data(strategy, worker):
    """Three batches on one worker, one on the other; then vice versa."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker, _UNEVEN), verbose=0)
    model.fit(kit.own(worker, _OTHER_WAY), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN, _SECOND))
def compiled_again(strategy, worker):
    """`compile` between two calls of `fit`, with the same optimizer."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    with strategy.scope():
        model.compile(model.optimizer, kit.Mean(), metrics=["mae"])
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


_HALF_RATE = {
    kind: _ONCE[kind] + scaled(linear(_SECOND), 0.5)[kind] for kind in _ONCE
}


@row(_HALF_RATE, downpour=fetched_over(linear(OWN, _SECOND)["sum"]))
def another_optimizer(strategy, worker):
    """`compile` with another optimizer between two calls of `fit`."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.5), kit.Mean())
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


class Two(keras.Model):
    """The sum of two weights' products with the data."""

    def __init__(self):
        super().__init__()
        self.first, self.second = kit.zeros(), kit.zeros()
        for layer in (self.first, self.second):
            layer.build((None, 1))

    def call(self, x):
        return self.first(x) + self.second(x)


@row(together(linear(OWN), linear(OWN, _SECOND)))
def unfrozen(strategy, worker):
    """A layer unfrozen between two calls of `fit`, with a new optimizer."""
    with strategy.scope():
        model = Two()
        model.second.trainable = False
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker), verbose=0)
    first = kit.weight(strategy, model)
    model.second.trainable = True
    with strategy.scope():
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return first, kit.numbers(strategy, [model.first.kernel])[0]


@row(linear(OWN))
def loop_of_train_on_batch(strategy, worker):
    """A loop of `train_on_batch`."""
    model = kit.compiled(strategy)
    for value in OWN[worker]:
        x = np.full([1, 1], value, "float32")
        model.train_on_batch(x, x)
    return kit.weight(strategy, model)


@row(linear(OWN))
def loop_of_strategy_run(strategy, worker):
    """A loop of `strategy.run` in a `tf.function`."""
    model = kit.compiled(strategy)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(grads, model.trainable_variables)

    run = tf.function(lambda x: strategy.run(step, (x,)))
    for value in OWN[worker]:
        run(tf.fill([1, 1], value))
    return kit.weight(strategy, model)


class OwnStep(keras.Model):
    """A custom `train_step`."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0], training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


@row(linear(OWN))
def own_train_step(strategy, worker):
    """A custom `train_step`."""
    with strategy.scope():
        inputs = keras.Input([1])
        model = OwnStep(inputs, kit.zeros()(inputs))
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


class NeverCalled(keras.Model):
    """No `call`, and a layer that the first step builds."""

    def __init__(self):
        super().__init__()
        self.layer = kit.zeros()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.layer(data[0]))
        grads = tape.gradient(loss, self.layer.trainable_variables)
        self.optimizer.apply(grads, self.layer.trainable_variables)
        return {"loss": loss}


@row(linear(OWN))
def own_train_step_without_call(strategy, worker):
    """A custom `train_step` of a model without `call`, which is not built."""
    with strategy.scope():
        model = NeverCalled()
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


class TwoOptimizers(Two):
    """Two optimizers in one step, as a GAN has them."""

    def train_step(self, data):
        for layer, optimizer in zip(
            (self.first, self.second), self.optimizers, strict=True
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(layer(data[0]))
            grads = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply(grads, layer.trainable_variables)
        return {"loss": loss}


# With on_drop="retry".
_NOT_AGAIN = Refused("several optimizer steps")
_ONE_AT_A_TIME = Refused("one optimizer trains at a time")


@row(
    together(linear(OWN), scaled(linear(OWN), 2.0)),
    downpour=fetched_over([-255.0] * 2),
    backup_workers=_NOT_AGAIN,
    **of(RINGS, _ONE_AT_A_TIME),
)
def two_optimizers_in_a_step(strategy, worker):
    """Two optimizers in one step, as in a GAN."""
    with strategy.scope():
        model = TwoOptimizers()
        model.optimizers = [keras.optimizers.SGD(r) for r in (1.0, 2.0)]
        for layer, one in zip(
            (model.first, model.second), model.optimizers, strict=True
        ):
            one.build(layer.trainable_variables)
        model.compile()
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.first.kernel, model.second.kernel])


@row(linear(OWN))
def several_steps_per_execution(strategy, worker):
    """`steps_per_execution=2`."""
    model = kit.compiled(strategy, steps_per_execution=2)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN), **of(RINGS, Refused("no step may run eagerly")))
def eager_steps(strategy, worker):
    """`run_eagerly=True`."""
    model = kit.compiled(strategy, run_eagerly=True)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def compiled_steps(strategy, worker):
    """`jit_compile=True`."""
    model = kit.compiled(strategy, jit_compile=True)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(together(linear(OWN, _SECOND), linear(_SECOND)))
def two_models_in_turns(strategy, worker):
    """`fit` of one model, then of another one, then of the first again."""
    models = kit.compiled(strategy), kit.compiled(strategy)
    for number, data in ((0, OWN), (1, _SECOND), (0, _SECOND)):
        models[number].fit(kit.own(worker, data), verbose=0)
    return [kit.weight(strategy, model) for model in models]


@row(together(linear(_SECOND, _SECOND), linear(OWN, OWN)))
def fit_within_fit(strategy, worker):
    """`fit` of another model in a callback at the end of each epoch."""
    outer, inner = kit.compiled(strategy), kit.compiled(strategy)

    def fit(epoch, logs=None):
        inner.fit(kit.own(worker), verbose=0)

    outer.fit(
        kit.own(worker, _SECOND),
        epochs=2,
        verbose=0,
        callbacks=[kit.on(on_epoch_end=fit)],
    )
    return [kit.weight(strategy, model) for model in (outer, inner)]


# The centre of elastic averaging moves by a part of the way to each worker, and
# a step of FASGD is small.
@row(
    {kind: value + 1000.0 for kind, value in linear(_SECOND).items()},
    **of(("easgd", "fasgd"), Loose(1000.0)),
)
def weights_set_between_fits(strategy, worker):
    """`set_weights` between two calls of `fit`: the chief's are used."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    strategy.barrier()
    model.set_weights([np.array([[[1000.0, 5.0][worker]]])])
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN, _SECOND))
def loaded_model(strategy, worker):
    """`fit`, save the model, load it, `fit`."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    strategy.barrier()
    with strategy.own_files():
        model.save(f"loaded-{worker}.keras")
    with strategy.scope():
        loaded = keras.models.load_model(
            f"loaded-{worker}.keras", custom_objects={"Mean": kit.Mean}
        )
    loaded.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, loaded)


@row(together(linear(OWN), linear(OWN)))
def evaluated(strategy, worker):
    """`evaluate` and `predict` after `fit` use the newest weights."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    strategy.barrier()
    one = np.ones([1, 1], "float32")
    loss = model.evaluate(one, one, verbose=0)
    return float(loss), float(model.predict(one, verbose=0)[0, 0])


@row(alike([2, 4]))
def validated_every_second_epoch(strategy, worker):
    """`validation_freq=2` in four epochs."""
    model = kit.compiled(strategy)
    one = np.ones([1, 1], "float32")
    history = model.fit(
        kit.own(worker),
        epochs=4,
        validation_data=(one, one),
        validation_freq=2,
        verbose=0,
    ).history
    return len(history["val_loss"]), len(history["loss"])


@row(linear(OWN))
def part_of_an_execution(strategy, worker):
    """`steps_per_execution=3` with four batches."""
    model = kit.compiled(strategy, steps_per_execution=3)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def later_epochs(strategy, worker):
    """`initial_epoch=2` with three epochs."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), initial_epoch=2, epochs=3, verbose=0)
    return kit.weight(strategy, model)


@row(together(linear(OWN), linear(_SECOND)))
def cloned_model(strategy, worker):
    """A model and a clone of it, trained one after the other."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    known = keras.saving.custom_object_scope({"Mean": kit.Mean})
    with strategy.scope(), known:
        clone = keras.models.clone_model(model)
        clone.compile(keras.optimizers.SGD(1.0), kit.Mean())
    clone.fit(kit.own(worker, _SECOND), verbose=0)
    return [kit.weight(strategy, one) for one in (model, clone)]


class TwoSteps(keras.Model):
    """The same optimizer twice in one step."""

    def train_step(self, data):
        """Takes two steps of a batch."""
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0], training=True))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


@row(scaled(linear(OWN), 2.0), backup_workers=_NOT_AGAIN)
def optimizer_twice_in_a_step(strategy, worker):
    """Two steps of one optimizer in one `train_step`."""
    with strategy.scope():
        inputs = keras.Input([1])
        model = TwoSteps(inputs, kit.zeros()(inputs))
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def loop_within_a_function(strategy, worker):
    """A `tf.function` that loops over the data with `strategy.run`."""
    model = kit.compiled(strategy)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(grads, model.trainable_variables)

    @tf.function
    def run(data):
        for x, _ in data:
            strategy.run(step, (x,))

    run(kit.own(worker))
    return kit.weight(strategy, model)


@row(linear(OWN))
def unused_layer(strategy, worker):
    """Two layers, one of which has no gradient."""
    with strategy.scope():
        model = Two()
        model.call = model.first
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.first.kernel])[0]
