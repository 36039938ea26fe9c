"""Losses between a student's predictions and its teachers'."""

from typing import Any

import keras
from keras import ops

from tfdist import checks

DISTANCES = (
    "cross_entropy",
    "kl_divergence",
    "mean_squared_logits",
    "mean_squared_error",
)
ACTIVATIONS = ("softmax", "sigmoid")

# Keras's losses -> what codistillation adds to each by default.
_CLASSES = {
    keras.losses.CategoricalCrossentropy: "softmax",
    keras.losses.CategoricalFocalCrossentropy: "softmax",
    keras.losses.SparseCategoricalCrossentropy: "softmax",
    keras.losses.BinaryCrossentropy: "sigmoid",
    keras.losses.BinaryFocalCrossentropy: "sigmoid",
}
_REGRESSION = (
    keras.losses.Huber,
    keras.losses.LogCosh,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanSquaredError,
)


@keras.saving.register_keras_serializable(package="tfdist")
class CodistillationLoss(keras.losses.Loss):
    """The loss psi of Anil et al. 2018 (arXiv 1804.03235), Algorithm 1.

    Of one teacher's outputs it is an ordinary Keras loss, without any need of
    the rest of codistillation:

    ```python
    loss = CodistillationLoss("cross_entropy", from_logits=True)
    loss(teacher_outputs, student_outputs)
    ```

    With logits z of the student, z' of a teacher and a temperature T, for each
    example (and time step, pixel, ...; the last axis is that of classes):

    - "cross_entropy": `-T^2 sum_c q_c log p_c` with `p = softmax(z / T)` and
      `q = softmax(z' / T)`, the paper's choice with T = 1;
    - "kl_divergence": the same less the entropy of q, so that it is 0 where
      both agree; its gradient is that of "cross_entropy";
    - "mean_squared_logits": the mean over classes of `(z - z')^2`;
    - "mean_squared_error": the mean over the last axis of the squared
      difference of the outputs as they are, for regression.

    The factor T^2 keeps the size of the gradient where T changes (Hinton et
    al. 2015, arXiv 1503.02531, section 2). No gradient is taken of the
    teacher's outputs.

    Args:
      distance: One of the above.
      activation: "softmax", or "sigmoid" where each output is the logit or
        the probability of a class by itself; what is summed over classes
        above is then the mean of each class's binary cross-entropy.
      from_logits: Whether outputs are logits; else they are probabilities,
        and their logits are `log p` (with softmax known up to a constant,
        chosen such that their mean over classes is 0).
      temperature: T, positive. "mean_squared_error" and
        "mean_squared_logits" have none.
      reduction: As in all losses of Keras.
      name: Of the loss.
      dtype: Of the computation; default: Keras's `floatx()`.

    Raises:
      ValueError: An argument is malformed.
    """

    def __init__(
        self,
        distance: str = "cross_entropy",
        *,
        activation: str = "softmax",
        from_logits: bool = False,
        temperature: float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "codistillation_loss",
        dtype: Any = None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        for argument, value, allowed in (
            ("distance", distance, DISTANCES),
            ("activation", activation, ACTIVATIONS),
        ):
            if value not in allowed:
                raise ValueError(
                    f"Argument `{argument}` must be one of "
                    f"{', '.join(allowed)}. Received: {argument}={value!r}"
                )
        temperature = checks.positive("temperature", temperature)
        if distance.startswith("mean_squared") and temperature != 1:
            raise ValueError(
                "Argument `temperature` must be 1 with "
                f"distance={distance!r}, which has none. Received: "
                f"temperature={temperature!r}"
            )
        self.distance = distance
        self.activation = activation
        self.from_logits = checks.flag("from_logits", from_logits)
        self.temperature = temperature
        self._of_targets = _OfTargets(self, reduction=reduction, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "distance": self.distance,
            "activation": self.activation,
            "from_logits": self.from_logits,
            "temperature": self.temperature,
        }

    def targets(self, outputs: Any) -> Any:
        """Returns the targets that one teacher's outputs give.

        Args:
          outputs: Tensor (batch, ..., classes), of one teacher.

        Returns:
          A float tensor of the same shape: probabilities, or logits, or the
          outputs.
        """
        outputs = ops.cast(outputs, self.dtype)
        if self.distance == "mean_squared_error":
            return outputs
        logits = self._logits(outputs)
        if self.distance == "mean_squared_logits":
            return logits
        logits = logits / self.temperature
        if self.activation == "sigmoid":
            return ops.sigmoid(logits)
        return ops.softmax(logits, axis=-1)

    def from_targets(
        self, targets: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        """The loss of a student where the targets are known.

        Args:
          targets: What `targets` returns, or the mean of several such.
          y_pred: The student's outputs.
          sample_weight: As in all losses of Keras.

        Returns:
          The loss, a scalar unless `reduction` says otherwise.
        """
        return self._of_targets(targets, y_pred, sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.between(self.targets(y_true), y_pred)

    def between(self, targets: Any, outputs: Any) -> Any:
        """The distance of each example, of shape (batch, ...)."""
        targets = ops.stop_gradient(targets)
        if self.distance == "mean_squared_error":
            return ops.mean(ops.square(outputs - targets), axis=-1)
        logits = self._logits(outputs)
        if self.distance == "mean_squared_logits":
            return ops.mean(ops.square(logits - targets), axis=-1)
        logits = logits / self.temperature
        if self.activation == "sigmoid":
            losses = -_weighted(targets, ops.log_sigmoid(logits))
            losses -= _weighted(1 - targets, ops.log_sigmoid(-logits))
            if self.distance == "kl_divergence":
                losses += _xlogx(targets) + _xlogx(1 - targets)
            losses = ops.mean(losses, axis=-1)
        else:
            losses = -_weighted(targets, ops.log_softmax(logits, axis=-1))
            if self.distance == "kl_divergence":
                losses += _xlogx(targets)
            losses = ops.sum(losses, axis=-1)
        return losses * self.temperature**2

    def _logits(self, outputs):
        if self.from_logits:
            return outputs
        tiny = keras.config.epsilon()
        outputs = ops.clip(outputs, tiny, 1 - tiny)
        if self.activation == "sigmoid":
            return ops.log(outputs) - ops.log(1 - outputs)
        logits = ops.log(outputs)
        return logits - ops.mean(logits, axis=-1, keepdims=True)


class _OfTargets(keras.losses.Loss):
    """Keras's weighting, masking and reduction of the distances."""

    def __init__(self, loss, **kwargs):
        super().__init__(name=loss.name, **kwargs)
        self._loss = loss

    def call(self, y_true, y_pred):
        return self._loss.between(y_true, y_pred)


def _weighted(targets, logs):
    """The product, 0 where targets are: there, a masked class has log 0."""
    return targets * ops.where(targets > 0, logs, 0)


def _xlogx(x):
    """Of each element x log x, which is 0 at 0."""
    return ops.where(x > 0, x * ops.log(ops.where(x > 0, x, 1)), 0)


def suited_to(loss):
    """The codistillation loss that suits one that a model is compiled with.

    Args:
      loss: Name of a Keras loss, or a loss.

    Returns:
      A `CodistillationLoss`.

    Raises:
      ValueError: There is none that would suit for certain.
    """
    found = _as_object(loss)
    kind = type(found)
    why = "cannot be told"
    if kind in _CLASSES or kind in _REGRESSION:
        config = found.get_config()
        reduction = config.get("reduction", "sum_over_batch_size")
        if config.get("ignore_class") is not None:
            why = (
                f"cannot be told, as it ignores class {config['ignore_class']} "
                "(give such examples the sample weight 0, which holds for "
                "both)"
            )
        elif config.get("axis", -1) != -1:
            why = f"cannot be told: classes are axis {config['axis']}, not -1"
        elif kind in _REGRESSION:
            return CodistillationLoss("mean_squared_error", reduction=reduction)
        else:
            return CodistillationLoss(
                "cross_entropy",
                activation=_CLASSES[kind],
                from_logits=config.get("from_logits", False),
                reduction=reduction,
            )
    if isinstance(found, keras.losses.Loss):
        name = kind.__name__
    else:
        name = getattr(found, "__name__", found)
    raise ValueError(
        f"Which loss of codistillation suits the loss {name!r} that the model "
        f"is compiled with {why}. Say so: "
        "loss=tfdist.codistillation.CodistillationLoss(...)."
    )


def _as_object(loss):
    """The loss that a name or a function of Keras's means, else what came."""
    try:
        found = keras.losses.get(loss) if isinstance(loss, str) else loss
        if isinstance(found, keras.losses.Loss):
            return found
        if getattr(keras.losses, found.__name__, None) is not found:
            return loss
        # Functions have the names of classes in another spelling.
        return keras.losses.get(
            {"class_name": _class_name(found.__name__), "config": {}}
        )
    except (AttributeError, TypeError, ValueError):
        return loss


def _class_name(name):
    """`mean_squared_error` -> `MeanSquaredError`."""
    return "".join(part.capitalize() for part in name.split("_"))
