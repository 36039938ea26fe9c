"""Loss and gradient of a portion of the data, on one worker."""

import keras
import numpy as np
import tensorflow as tf

_DTYPES = ("float32", "float64")


class PortionGradients:
    """Computes with a model's own `train_step`, batch by batch.

    Args:
      strategy: The strategy of the model.
      model: The compiled `keras.Model`, built.

    Attributes:
      number: Elements of all trainable variables.
      dtype: Of vectors of these.

    Raises:
      ValueError: The model cannot be trained so; the message says why.
    """

    def __init__(self, strategy, model):
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
            self._step = tf.function(
                self._own_step,
                autograph=False,
                reduce_retracing=True,
                jit_compile=model.jit_compile,
            )
        self._assign = tf.function(self._split_and_assign, autograph=False)
        self._is_checked = False

    @property
    def signature(self):
        """Text of the variables, the same on all workers."""
        return ", ".join(
            f"{v.name}{tuple(v.shape)}:{keras.backend.standardize_dtype(v.dtype)}"
            for v in self._variables
        )

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

    def compute(self, batches, goes_on=lambda: True):
        """Computes loss and gradient.

        Args:
          batches: Iterable of a model's batches.
          goes_on: Callable without arguments, asked between two batches whether
            anybody still wants the answer.

        Returns:
          The gradient's sum over examples, a tensor `(number,)`, and a float64
          array: the sum of the loss, the number of examples, and the state of
          all metrics, one after the other. None if nobody wants it.

        Raises:
          ValueError: A step changes the model's state.
        """
        before = None if self._is_checked else self._state()
        self._gradient.assign(tf.zeros_like(self._gradient))
        self._totals.assign(tf.zeros_like(self._totals))
        self._model.reset_metrics()
        for batch in batches:
            if not goes_on():
                return None
            self._step(batch)
            if before is not None:
                self._check_state(before)
                before, self._is_checked = None, True
        metrics = [
            np.ravel(v.numpy()).astype(np.float64)
            for v in self._model.metrics_variables
        ]
        totals = np.concatenate([self._totals.numpy(), *metrics])
        return self._gradient.value(), totals

    def show(self, totals):
        """Gives the model's metrics the state of all portions' totals."""
        begin = 2
        for variable in self._model.metrics_variables:
            size = int(np.prod(variable.shape))
            part = totals[begin : begin + size]
            variable.assign(np.reshape(part, variable.shape))
            begin += size

    def _own_step(self, batch):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        first = next(one for one in keras.tree.flatten(x) if one is not None)
        examples = tf.shape(first)[0]
        sink = _Sink(self, tf.cast(examples, tf.float64))
        with self._model.optimizer.collecting(sink):
            self._strategy.run(self._model.train_step, args=(batch,))
        sink.check()

    def _add(self, loss, gradients, variables, examples):
        """Builds: the sums grow by those of a batch.

        Args:
          loss: Its mean loss, a scalar.
          gradients: List of tensors, `tf.IndexedSlices` or None.
          variables: Keras variables that they are of, in the same order.
          examples: Their number, a scalar float64 tensor.
        """
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
        weight = tf.cast(examples, self.dtype)
        self._gradient.assign_add(weight * tf.concat(parts, 0))
        loss = tf.cast(loss, tf.float64)
        self._totals.assign_add(tf.stack([loss * examples, examples]))

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
