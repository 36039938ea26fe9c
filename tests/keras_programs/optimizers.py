"""Rows: optimizers. Gradients are 1, so that their order is nothing."""

import functools

import keras
import numpy as np

from tests.all_reduce.programs import batches
from tests.all_reduce.programs import linear as plain_linear
from tests.keras_programs import kit
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import by_updates
from tests.keras_programs.arithmetic import fetched_over
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.arithmetic import scaled
from tests.keras_programs.arithmetic import together
from tests.keras_programs.arithmetic import updates
from tests.keras_programs.columns import AVERAGING
from tests.keras_programs.columns import LOCAL_STEPS
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Loose
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row

STEPS = 4
_ONES = ((1.0,) * STEPS,) * 2
_TWO = ((1.0, 2.0), (4.0, 8.0))
_CLIPS = ("averaging.md", "that matters is gradient clipping")
_IGNORED = fetched_over(-2.0 * STEPS)
_SGD_ALONE = {
    "dana": Refused("SGD without momentum"),
    "fasgd": Refused("SGD"),
}


def plain(make, epochs=1, callbacks=lambda: [], **settings):
    """Returns a function of a number of updates, which plain Keras makes.

    Args:
        make: callable that makes an optimizer.
        epochs: over which the updates are distributed.
        callbacks: callable that makes those of `fit`.
        **settings: of `fit`.
    """

    @functools.cache
    def weight(updates):
        model = plain_linear(make())
        model.fit(
            batches(np.ones(updates // epochs)),
            epochs=epochs,
            callbacks=callbacks(),
            verbose=0,
            **settings,
        )
        return float(model.get_weights()[0][0, 0])

    return weight


def _optimizer(sgd=False, looks=False, **others):
    """Makes a row of a function that makes an optimizer.

    Args:
        sgd: whether it is SGD without momentum.
        looks: whether its steps depend on the weights: with asynchronous
            local steps, on who is late.
        **others: as in `row`.
    """

    def add(make):
        weight = plain(make)

        @functools.wraps(make)
        def program(strategy, worker):
            model = kit.compiled(strategy, make)
            model.fit(kit.own(worker, _ONES), verbose=0)
            return kit.weight(strategy, model)

        expected = by_updates(STEPS, lambda n: functools.partial(weight, n))
        refused = {} if sgd else _SGD_ALONE
        if looks:
            depends = {
                "async_local_sgd": Loose(expected["half"]),
                "peer_to_peer": Loose(expected["sent"]),
                "gossip": Loose(expected["half"]),
            }
            refused = {**refused, **depends}
        cells = {"downpour": _IGNORED, **refused, **others}
        return row(expected, **cells)(program)

    return add


@_optimizer()
def adam():
    """Adam."""
    return keras.optimizers.Adam(0.5)


@_optimizer(looks=True)
def adamw():
    """AdamW, with weight decay."""
    return keras.optimizers.AdamW(0.5, weight_decay=0.25)


@_optimizer()
def nadam():
    """Nadam, which also keeps a product of momenta."""
    return keras.optimizers.Nadam(0.5)


@_optimizer(fasgd=Loose(-4.0))
def momentum():
    """SGD with Nesterov's momentum."""
    return keras.optimizers.SGD(0.5, momentum=0.5, nesterov=True)


@_optimizer()
def rmsprop():
    """RMSprop, centred and with momentum."""
    return keras.optimizers.RMSprop(0.5, momentum=0.5, centered=True)


@_optimizer()
def adagrad():
    """Adagrad."""
    return keras.optimizers.Adagrad(0.5)


@_optimizer()
def adadelta():
    """Adadelta."""
    return keras.optimizers.Adadelta(0.5)


@_optimizer()
def adamax():
    """Adamax."""
    return keras.optimizers.Adamax(0.5)


@_optimizer(
    looks=True,
    **of(("peer_to_peer", "gossip", *LOCAL_STEPS), Refused("class Ftrl")),
)
def ftrl():
    """FTRL."""
    return keras.optimizers.Ftrl(0.5)


@_optimizer()
def lion():
    """Lion."""
    return keras.optimizers.Lion(0.5)


@_optimizer(looks=True)
def lamb():
    """LAMB."""
    return keras.optimizers.Lamb(0.5)


@_optimizer(looks=True)
def adafactor():
    """Adafactor."""
    return keras.optimizers.Adafactor(0.5)


@_optimizer(sgd=True)
def schedule():
    """A learning-rate schedule, which follows the number of updates."""
    return keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    )


@_optimizer(sgd=True, downpour=Documented(-2.0, *_CLIPS))
def clipped():
    """`clipnorm`."""
    return keras.optimizers.SGD(1.0, clipnorm=0.25)


@_optimizer(sgd=True, looks=True)
def decayed():
    """SGD with `weight_decay`."""
    return keras.optimizers.SGD(0.5, weight_decay=0.25)


@_optimizer(sgd=True)
def scaled_loss():
    """`LossScaleOptimizer`."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5), initial_scale=16.0
    )


class CountsItself(keras.optimizers.SGD):
    """SGD whose rate falls with a count that is a variable of its own."""

    def build(self, variables):
        """Makes the count."""
        super().build(variables)
        self.count = self.add_variable((), name="count")

    def update_step(self, gradient, variable, learning_rate):
        """Takes a smaller step each time."""
        self.assign_add(self.count, 1.0)
        super().update_step(gradient, variable, learning_rate / self.count)


@_optimizer(sgd=True)
def own_scalar():
    """A custom optimizer that keeps a scalar variable."""
    return CountsItself(0.5)


_ORDERED = "bounded_staleness", "dc_asgd", "inverse_staleness", "gap_aware"
_NO_EMA = of(
    (*AVERAGING, *_ORDERED, "peer_to_peer", "gossip"), Refused("use_ema")
)
# With SGD, which alone works with these.
NO_EMA = {**_NO_EMA, **of(("dana", "fasgd"), Refused("use_ema"))}


@_optimizer(sgd=True, **NO_EMA)
def averaged():
    """`use_ema=True`: after `fit`, the weights are the average."""
    return keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)


@_optimizer(**_NO_EMA)
def overwritten():
    """`ema_overwrite_frequency=2`, with Adam."""
    return keras.optimizers.Adam(
        0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    )


@_optimizer(downpour=Documented(-4.0, *_CLIPS))
def amsgrad():
    """Adam with `amsgrad` and `global_clipnorm`."""
    return keras.optimizers.Adam(0.5, amsgrad=True, global_clipnorm=0.5)


@_optimizer()
def muon():
    """Muon, without its weight decay."""
    return keras.optimizers.Muon(0.5, weight_decay=0.0)


_EACH_STEP = {
    # Elastic averaging and Downpour.
    **of(("easgd", "downpour"), Refused("needs the gradients of every step")),
    # With on_drop="retry".
    "backup_workers": Refused("accumulates gradients"),
}


@row(scaled(linear(OWN), 0.5), **_EACH_STEP)
def accumulated(strategy, worker):
    """`gradient_accumulation_steps=2`."""
    model = kit.compiled(
        strategy,
        lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
    )
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(
    together(scaled(linear(_TWO), 0.5), scaled(linear(_TWO, _TWO), 0.5)),
    **_EACH_STEP,
)
def accumulated_over_fits(strategy, worker):
    """The same over two calls of `fit`, with `compile` in between."""
    model = kit.compiled(
        strategy,
        lambda: keras.optimizers.SGD(1.0, gradient_accumulation_steps=2),
    )
    seen = []
    for _ in range(2):
        model.fit(kit.own(worker, _TWO), verbose=0)
        seen.append(kit.weight(strategy, model))
        with strategy.scope():
            model.compile(model.optimizer, kit.Mean())
    return seen


_STEPS_DONE = {kind: float(2 * n) for kind, n in updates(4).items()}


@row(_STEPS_DONE, downpour=8.0, easgd=8.0)
def count_of_steps(strategy, worker):
    """`optimizer.iterations`."""
    model = kit.compiled(strategy)
    for _ in range(2):
        model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.optimizer.iterations])[0]


class OwnRule(keras.optimizers.SGD):
    """SGD that a weight's sign doubles, by `tf.cond` within its rule."""

    def update_step(self, gradient, variable, learning_rate):
        """Takes a step of twice the gradient where that is positive."""
        twice = keras.ops.where(gradient > 0, 2.0 * gradient, gradient)
        super().update_step(twice, variable, learning_rate)


@row(scaled(linear(OWN), 2.0), downpour=fetched_over(-255.0))
def own_rule(strategy, worker):
    """A custom optimizer with its own `update_step`."""
    model = kit.compiled(strategy, lambda: OwnRule(1.0))
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)
