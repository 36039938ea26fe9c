"""Loss and gradient of a portion of the data, on one worker."""

import keras
import numpy as np
import tensorflow as tf

from tfdist import missing_gradients
from tfdist import private_keras
from tfdist import variable_names

_DTYPES = ("float32", "float64")
# Difference of what a batch comes to twice, by rounding: relative or absolute.
_ROUNDED = {"rtol": 1e-3, "atol": 1e-6}


class PortionGradients:
    """Computes with a model's own `train_step`, batch by batch.

    Args:
      strategy: The strategy of the model.
      model: The compiled `keras.Model`, built.
      batches: List of the batches of the data set.

    Attributes:
      number: Elements of all trainable variables.
      dtype: Of vectors of these.

    Raises:
      ValueError: The model cannot be trained so; the message says why.
    """

    def __init__(self, strategy, model, batches):
        check(model)
        self._strategy = strategy
        self._model = model
        self._variables = list(model.trainable_variables)
        self._sizes = [int(np.prod(v.shape)) for v in self._variables]
        self.number = sum(self._sizes)
        dtypes = {
            keras.backend.standardize_dtype(v.dtype) for v in self._variables
        }
        self.dtype = tf.as_dtype(max(dtypes))
        self._gradient = tf.Variable(tf.zeros([self.number], self.dtype))
        # The loss times the number of examples, and that number.
        self._totals = tf.Variable(tf.zeros([2], tf.float64))
        self._step = self._own_step
        if not model.run_eagerly:
            self._step = _traced(self._own_step, batches, model.jit_compile)
        self._assign = tf.function(self._split_and_assign, autograph=False)
        self._is_checked = False
        # Variables of metrics that were 0 in all that was checked: of these,
        # twice as much says nothing.
        self._at_zero = []
        # Names of what `train_step` returns; None before a step.
        self._logged = None

    @property
    def signature(self):
        """Text of the variables, the same on all workers."""
        return ", ".join(
            f"{v.name}{tuple(v.shape)}:{keras.backend.standardize_dtype(v.dtype)}"
            for v in self._variables
        )

    def untrained(self):
        """Returns what else the loss depends on, a list of tensors.

        Weights of frozen layers, and statistics; no random seeds.
        """
        return [
            tf.constant(value)
            for variable, value in self._state()
            if not variable_names.is_seed(variable.name)
        ]

    def values(self):
        """Returns the variables as one vector, a tensor `(number,)`."""
        return tf.concat(
            [
                tf.cast(tf.reshape(v.value, [-1]), self.dtype)
                for v in self._variables
            ],
            0,
        )

    def assign(self, vector):
        """Gives the variables the values of a vector `(number,)`."""
        self._assign(vector)

    def rounded(self, vector):
        """Returns what `values` gives after `assign(vector)`."""
        parts = zip(self._variables, tf.split(vector, self._sizes), strict=True)
        return tf.concat(
            [tf.cast(tf.cast(part, v.dtype), self.dtype) for v, part in parts],
            0,
        )

    def check_first(self, batch):
        """Refuses a step that L-BFGS cannot use; before all other methods.

        Args:
          batch: The first batch of the data.

        Raises:
          ValueError: The loss is no function of the parameters, or a metric no
            sum over the data; the message says why.
        """
        self._check_step(batch)
        self._is_checked = True
        self._at_zero = _zeros(self._model.metrics_variables)

    def compute(self, batches, goes_on=lambda: True):
        """Computes loss and gradient.

        Args:
          batches: List of some of the batches.
          goes_on: Callable without arguments, asked between two batches whether
            anybody still wants the answer.

        Returns:
          The gradient's sum over examples, a tensor `(number,)`, and a float64
          array: the sum of the loss, the number of examples, and the state of
          all metrics, one after the other. None if nobody wants it.

        Raises:
          ValueError: The loss is no function of the parameters, or a metric no
            sum over the data; the message says why.
        """
        self._begin_at_zero()
        at_zero, telling = self._at_zero, []
        for batch in batches:
            if not goes_on():
                return None
            self._step(batch)
            if len(left := _zeros(at_zero)) < len(at_zero):
                at_zero = left
                telling.append(batch)
        totals = [self._totals.numpy(), *self._metrics()]
        gradient = self._gradient.value()
        for batch in telling:
            self._check_step(batch)
        self._at_zero = at_zero
        return gradient, np.concatenate(totals)

    def show(self, totals):
        """Gives the model's metrics the state of all portions' totals."""
        begin = 2
        for variable in self._model.metrics_variables:
            size = int(np.prod(variable.shape))
            part = totals[begin : begin + size]
            variable.assign(np.reshape(part, variable.shape))
            begin += size

    def logs(self, loss):
        """The logs of an epoch, when `show` was called.

        Args:
          loss: The value, for a `train_step` that keeps no metric of it.

        Returns:
          A dict.
        """
        logs = dict(self._model.get_metrics_result())
        is_kept = any(
            np.any(v.numpy())
            for metric in self._model.metrics
            if metric.name == "loss"
            for v in metric.variables
        )
        if not is_kept:
            # Keras shows this metric, where it has the names of all logs.
            private_keras.loss_tracker(self._model).update_state(loss)
            logs["loss"] = loss
        if self._logged is None:
            return logs
        return {name: logs[name] for name in logs if name in self._logged}

    def _begin_at_zero(self):
        self._gradient.assign(tf.zeros_like(self._gradient))
        self._totals.assign(tf.zeros_like(self._totals))
        self._model.reset_metrics()

    def _metrics(self):
        """State of all metrics, a list of float64 vectors."""
        return [
            np.ravel(v.numpy()).astype(np.float64)
            for v in self._model.metrics_variables
        ]

    def _own_step(self, batch):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        first = next(one for one in keras.tree.flatten(x) if one is not None)
        examples = tf.shape(first)[0]
        sink = _Sink(self, tf.cast(examples, tf.float64))
        with self._model.optimizer.collecting(sink):
            logs = self._strategy.run(self._model.train_step, args=(batch,))
        sink.check()
        if not self._is_checked:
            self._check_logs(logs)

    def _add(self, loss, gradients, variables, examples):
        """Builds: the sums grow by those of a batch.

        Args:
          loss: Its mean loss, a scalar.
          gradients: List of tensors, `tf.IndexedSlices` or None.
          variables: Keras variables that they are of, in the same order.
          examples: Their number, a scalar float64 tensor.
        """
        # Each gradient comes from where its layer lies, once.
        with tf.device(self._gradient.device):
            parts = self._parts(gradients, variables)
            weight = tf.cast(examples, self.dtype)
            self._gradient.assign_add(weight * tf.concat(parts, 0))
            loss = tf.cast(loss, tf.float64)
            self._totals.assign_add(tf.stack([loss * examples, examples]))

    def _parts(self, gradients, variables):
        """Builds: a vector of the gradient of each variable, in a list."""
        by_variable = {
            id(variable): gradient
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        parts = []
        for variable, size in zip(self._variables, self._sizes, strict=True):
            gradient = by_variable.pop(id(variable), None)
            if gradient is None:
                parts.append(tf.zeros([size], self.dtype))
            else:
                gradient = tf.convert_to_tensor(gradient)
                parts.append(tf.cast(tf.reshape(gradient, [-1]), self.dtype))
        _refuse_others(by_variable, variables)
        return parts

    def _split_and_assign(self, vector):
        parts = tf.split(vector, self._sizes)
        for variable, part in zip(self._variables, parts, strict=True):
            value = tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            variable.value.assign(value)

    def _state(self):
        """State that a step must not change, a list of variables and values."""
        metrics = set(map(id, self._model.metrics_variables))
        return [
            (variable, variable.numpy())
            for variable in self._model.non_trainable_variables
            if id(variable) not in metrics
        ]

    def _check_step(self, batch):
        """Refuses a step that L-BFGS cannot use: it is made twice."""
        before = self._state()
        self._begin_at_zero()
        found = []
        for _ in range(2):
            self._step(batch)
            self._check_state(before)
            found.append((self._totals.numpy()[0], self._metrics()))
        (loss, metrics), (losses, both) = found
        if not _is_twice(losses, loss):
            raise ValueError(
                "A model that L-BFGS trains must have a loss that is a "
                "function of its parameters, without random numbers. Received: "
                f"two losses of one batch, with the sums {loss} and "
                f"{losses - loss}"
            )
        for variable, one, two in zip(
            self._model.metrics_variables, metrics, both, strict=True
        ):
            if not _is_twice(two, one):
                raise ValueError(
                    "Metrics under SandblasterStrategy must be made of sums "
                    "over the data, because those of portions are added. "
                    "Received: a metric whose variable "
                    f"{variable.path!r} is {one} after a batch, and {two} "
                    "after the same batch again"
                )

    def _check_logs(self, logs):
        results = self._model.get_metrics_result()
        self._logged = {"loss", *logs}
        if unknown := self._logged - {"loss", *results}:
            raise ValueError(
                "What the `train_step` of a model that L-BFGS trains returns "
                "must be results of the model's metrics: only these can be "
                f"added over portions. Received: {sorted(unknown)}"
            )

    def _check_state(self, before):
        for variable, value in before:
            if not np.array_equal(variable.numpy(), value):
                refuse_change(variable)


class _Sink:
    """Receiver of the loss and the gradients of one batch."""

    def __init__(self, gradients, examples):
        self._gradients = gradients
        self._examples = examples
        self._loss = None
        self._has_gradients = False

    def note_loss(self, loss):
        self._loss = loss

    def add(self, gradients, variables):
        if self._loss is None or self._has_gradients:
            self.check()
        self._has_gradients = True
        if variables is None:
            variables = self._gradients._variables  # noqa: SLF001
        missing_gradients.refuse_or_warn(gradients, variables)
        self._gradients._add(  # noqa: SLF001
            self._loss, gradients, variables, self._examples
        )

    def check(self):
        if self._loss is None or not self._has_gradients:
            raise ValueError(
                "The `train_step` of a model that L-BFGS trains must call "
                "`optimizer.scale_loss(loss)` and then `optimizer.apply` or "
                "`apply_gradients`, once. Received: a train_step that does not"
            )


def _refuse_others(by_variable, variables):
    """Refuses gradients that would be lost.

    Args:
      by_variable: `id` of a variable that the model does not train -> its
        gradient, or None.
      variables: Keras variables, these among them.

    Raises:
      ValueError: There is one.
    """
    for variable in variables:
        if by_variable.get(id(variable)) is not None:
            raise ValueError(
                "The `train_step` of a model that L-BFGS trains must give its "
                "optimizer gradients of the model's trainable variables only. "
                f"Received: one of {variable.path!r}"
            )


def refuse_change(variable):
    """Refuses a model whose step changes a variable of its state.

    Raises:
      ValueError: Always.
    """
    raise ValueError(
        "A model that L-BFGS trains must not change its state in a step "
        "(moving statistics of BatchNormalization, random numbers of Dropout): "
        "its loss would not be a function of its parameters. Received: the "
        f"variable {variable.path!r}"
    )


def _traced(step, batches, jit_compile):
    """A step that is traced once, with what all batches have in common.

    As in Keras's own `fit`, so that it knows no more of a batch's size.

    Args:
      step: Callable of a batch.
      batches: List of all batches.
      jit_compile: Whether XLA compiles it.

    Returns:
      A callable of a batch.
    """
    is_there = tf.nest.map_structure(lambda part: part is not None, batches[0])

    def parts_of(batch):
        return [part for part in tf.nest.flatten(batch) if part is not None]

    def with_parts(*parts):
        parts = iter(parts)
        return step(
            tf.nest.map_structure(
                lambda x: next(parts) if x else None, is_there
            )
        )

    specs = [
        {tf.type_spec_from_value(part) for part in parts}
        for parts in zip(*map(parts_of, batches), strict=True)
    ]
    function = tf.function(
        with_parts,
        input_signature=[
            first.most_specific_common_supertype(others)
            for first, *others in specs
        ],
        autograph=False,
        jit_compile=jit_compile,
    )
    return lambda batch: function(*parts_of(batch))


def _zeros(variables):
    """Those of some variables that have nothing but zeros."""
    return [variable for variable in variables if not np.any(variable.numpy())]


def _is_twice(both, one):
    """Whether a sum is two times another one, but for rounding."""
    return np.allclose(both, 2 * one, equal_nan=True, **_ROUNDED)


def check(model):
    """Refuses models that cannot be trained.

    Raises:
      ValueError: The message says why.
    """
    variables = model.trainable_variables
    if not variables:
        raise ValueError(
            "A model that L-BFGS trains must have trainable variables. "
            f"Received: {model.name!r}, which has none"
        )
    for variable in variables:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype not in _DTYPES:
            raise ValueError(
                "Parameters that L-BFGS trains must be float32 or float64. "
                f"Received: {variable.path!r} of {dtype}"
            )
        if getattr(variable, "constraint", None) is not None:
            raise ValueError(
                "Parameters that L-BFGS trains must have no constraint. "
                f"Received: {variable.path!r} with {variable.constraint}"
            )
