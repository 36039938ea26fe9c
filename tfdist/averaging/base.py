"""The base of methods with K local steps between exchanges."""

import abc
import copy
import enum
import inspect

import keras
import tensorflow as tf

from tfdist import checks
from tfdist import comparable
from tfdist import private_keras
from tfdist import variable_names
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


class Pushed(enum.Enum):
    """The contents of a push.

    CHANGE: what its steps have made of the parameters that it began from,
      `anchor - own`, a descent direction (a 'pseudo-gradient').
    WEIGHTS: its own weights.
    GRADIENTS: the sum of the gradients of its steps.
    """

    CHANGE = "change"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"


class LocalSteps(comparable.Comparable, abc.ABC):
    """Says how a worker trains between exchanges, and what an exchange does.

    Between two exchanges a worker trains its *own* weights with the optimizer
    that the model was compiled with, the *inner* one. The *anchor* is what the
    servers gave it last. Pure TensorFlow over the tensors of one parameter;
    knows nothing of processes, devices or Keras's training loop.

    Attributes:
      pushed: A `Pushed`.
      keeps_own: Whether a worker goes on from its own weights after an
        exchange; else it goes on from what the servers give.
      weighted: Whether an update of several workers' pushes weighs them by
        the examples that they have seen; else all count the same.
      dynamic: Whether slower workers take fewer steps.
      average_optimizer_state: Whether the inner optimizer's slots are averaged
        along with the parameters.
      reset_momentum: Whether the inner optimizer's momenta (`is_momentum`)
        start afresh after each exchange.
    """

    pushed = Pushed.CHANGE
    keeps_own = False
    weighted = True
    dynamic = False
    average_optimizer_state = False
    reset_momentum = False

    def resolve(
        self,
        synchronization: Synchronization,
        correction: Correction | None,
        num_workers: int,
    ) -> "LocalSteps":
        """Checks the settings against the rest of the strategy.

        Args:
          synchronization: The `Synchronization`, resolved.
          correction: The `Correction`, or None.
          num_workers: Number of workers.

        Returns:
          The method with all settings known, this or another instance.

        Raises:
          ValueError: They do not fit together.
        """
        if synchronization.retries:
            raise ValueError(
                f"{type(self).__name__}: on_drop='retry' computes one batch "
                "again, and an exchange stands for several: use "
                "on_drop='next'."
            )
        return self

    @abc.abstractmethod
    def steps(self, step: tf.Tensor) -> tf.Tensor:
        """Local steps between two pushes, when local step `step` is done.

        Args:
          step: Steps that the inner optimizer has counted, scalar int64
            tensor, 1 after the first.

        Returns:
          A scalar int64 tensor.
        """

    def fetch_steps(self, step: tf.Tensor) -> tf.Tensor | None:
        """The same between two fetches; None if a push brings a fetch."""

    @abc.abstractmethod
    def outer_optimizer(self) -> keras.Optimizer:
        """Makes the optimizer that turns what is pushed into parameters.

        Called in the strategy's scope.

        Returns:
          A `keras.optimizers.Optimizer`.
        """

    def push(self, own: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
        """Computes what a worker pushes of a parameter.

        Args:
          own: The worker's weights, a tensor.
          anchor: What the servers last gave it, a tensor.
        """
        return anchor - own if self.pushed is Pushed.CHANGE else own

    def apply(
        self, parameter: tf.Tensor, pushed: tf.Tensor
    ) -> tf.Tensor | None:
        """Makes a parameter of what was pushed, on its server.

        Args:
          parameter: The parameter, a tensor.
          pushed: What was pushed, a tensor; of several workers the mean.

        Returns:
          The new parameter; None if the outer optimizer does it.
        """

    def adopt(
        self,
        own: tf.Tensor,
        point: tf.Tensor,
        anchor: tf.Tensor,
        fresh: tf.Tensor,
    ) -> tf.Tensor:
        """Computes the values that a worker continues from after an exchange.

        Args:
          own: The worker's weights after its last step, a tensor.
          point: The same before that step, where its gradient was computed.
          anchor: What the servers gave it the last time.
          fresh: What they have given it now.
        """
        return fresh


def is_momentum(name):
    """Whether an optimizer's variable of that name is a momentum.

    Second moments are not: with the steps that it has counted, Adam takes
    those that start afresh for old ones.

    Args:
      name: As Keras makes it of a parameter's and of the slot's name.
    """
    return _ends(name, "momentum")


def is_sum(name):
    """Whether an optimizer's variable of that name is a sum of squares.

    As those of Adagrad, which need not begin at 0. The accumulated
    gradients of `gradient_accumulation_steps` are not.

    Args:
      name: As Keras makes it of a parameter's and of the slot's name.
    """
    is_of_gradients = variable_names.is_accumulator(name)
    return _ends(name, "_accumulator") and not is_of_gradients


def _ends(name, end):
    return name.split(":")[0].endswith(end)


def period_steps(period, warmup_steps, step):
    """Local steps between two exchanges.

    Args:
      period: int, or callable of `step` that returns one or a scalar tensor.
      warmup_steps: Local steps during which it is 1.
      step: Scalar int64 tensor.

    Returns:
      A scalar int64 tensor, at least 1.
    """
    steps = period(step) if callable(period) else period
    steps = tf.maximum(tf.cast(steps, tf.int64), 1)
    if warmup_steps:
        steps = tf.where(step <= warmup_steps, tf.ones([], tf.int64), steps)
    return steps


def checked_period(owner, name, period):
    """Refuses what is neither a number of steps nor a function.

    Args:
      owner: Name of the class.
      name: Name of the argument.
      period: What was received.

    Returns:
      It, a number as an int.

    Raises:
      ValueError: It is refused.
    """
    if callable(period) and _takes_one(period):
        return period
    if not checks.is_count(period, 1):
        allowed = "an integer of at least 1 or a function of the local step"
        raise ValueError(checks.refusal(f"{owner}: {name}", allowed, period))
    return int(period)


_NOT_OUTER = (
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "loss_scale_factor",
    "use_ema",
    "weight_decay",
)


# By name, as older versions of Keras have not all of them.
_NOT_OUTER_CLASSES = {
    "Adafactor": "it names its slots after weights",
    "Muon": "it tells weights by their paths",
    "ScheduleFreeAdamW": "its slots begin as the weights",
}
_OPTIMIZER = "a Keras optimizer, its name or its config"


def is_factory(optimizer):
    """Whether it is a function of the number of workers."""
    return callable(optimizer) and not isinstance(
        optimizer, keras.optimizers.Optimizer | type
    )


def check_factory(owner, name, factory):
    """Refuses a function that is not one of the number of workers.

    Args:
      owner: Name of the class.
      name: Name of the argument.
      factory: What was received, for which `is_factory` holds.

    Raises:
      ValueError: It is refused.
    """
    if not _takes_one(factory):
        allowed = f"{_OPTIMIZER}, or a function of the number of workers"
        raise ValueError(checks.refusal(f"{owner}: {name}", allowed, factory))


def _takes_one(function):
    """Whether a function can be called with one argument, as far as known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # It does not say.
        return True
    return True


def keras_optimizer(owner, name, optimizer):
    """Returns the optimizer that an argument is, names or describes.

    Args:
      owner: Name of the class.
      name: Name of the argument.
      optimizer: What `keras.optimizers.get` takes.

    Raises:
      ValueError: It is none.
    """
    try:
        # Of None, Keras makes None.
        return keras.optimizers.get(optimizer or "")
    except (TypeError, ValueError) as error:
        raise ValueError(
            checks.refusal(f"{owner}: {name}", _OPTIMIZER, optimizer)
        ) from error


def optimizer_config(owner, name, optimizer):
    """Returns the config of an outer optimizer, to make one per inner one.

    Args:
      owner: Name of the class.
      name: Name of the argument.
      optimizer: What `keras.optimizers.get` takes.

    Returns:
      A dict for `keras.optimizers.deserialize`.

    Raises:
      ValueError: It is none, or has a setting that acts on whole steps, or a
        rule that servers cannot apply to each weight by itself.
    """
    optimizer = keras_optimizer(owner, name, optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            f"{owner}: {name} gets changes of weights, which need no scaling "
            "of losses; compile the model with LossScaleOptimizer instead."
        )
    for setting in _NOT_OUTER:
        value = getattr(optimizer, setting, None)
        if value:
            raise ValueError(
                f"{owner}: {name} with {setting}={value!r} is not supported: "
                "give that setting to the optimizer that the model is "
                "compiled with."
            )
    _check_rule(owner, name, optimizer)
    config = keras.optimizers.serialize(optimizer)
    # Keras numbers names by what the process has made before.
    del config["config"]["name"]
    return config


def _check_rule(owner, name, optimizer):
    reason = None
    if private_keras.has_step_of_its_own(optimizer):
        reason = "a step of it is more than an update of each weight"
    for kind in type(optimizer).mro():
        reason = reason or _NOT_OUTER_CLASSES.get(kind.__name__)
    if reason:
        raise ValueError(
            f"Argument `{name}` of {owner} must be an optimizer of which "
            f"servers need `update_step` alone, such as SGD or Adam: {reason}. "
            f"Received: {name}={type(optimizer).__name__}"
        )


def new_optimizer(config):
    """Returns a new outer optimizer.

    Args:
      config: A dict as `optimizer_config` returns it, which stays as it is:
        Keras would replace the config of a learning rate schedule in it by
        the schedule.
    """
    # Which `keras.optimizers.deserialize` does for some of Keras's own alone.
    return keras.saving.deserialize_keras_object(copy.deepcopy(config))
