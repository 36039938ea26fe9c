"""The distillation term that is added to a model's loss."""

import math

from keras import tree
import tensorflow as tf

from tfdist import checks
from tfdist.codistillation import loss as loss_lib
from tfdist.codistillation import outputs as outputs_lib


class AddedLoss:
    """weight * psi(mean of teachers, student), from the burn-in's end on.

    Args:
      burn_in_steps: As in `Codistilled`.
      weight: As there.
      loss: As there.

    Attributes:
      burn_in_steps: As given.
      teachers: Tuple of `Teacher`.
      signature: `(x, outputs)` of the last step that was traced, each a
        `tf.TensorSpec` or a structure of such; None before the first.
      loss_weights: Those that the model is compiled with.

    Raises:
      ValueError: An argument is malformed.
    """

    def __init__(self, burn_in_steps, weight, loss):
        self.burn_in_steps = checks.count("burn_in_steps", burn_in_steps, 0)
        if not callable(weight):
            is_good = checks.is_number(weight) and 0 <= weight < math.inf
            if not is_good:
                raise ValueError(
                    checks.refusal(
                        "weight",
                        "a finite number of at least 0, or a callable of the "
                        "step such as a schedule",
                        weight,
                    )
                )
        for part in tree.flatten(loss):
            if part is not None and not isinstance(
                part, loss_lib.CodistillationLoss
            ):
                raise ValueError(
                    "Argument `loss` must be a CodistillationLoss, or a dict "
                    f"or list of such. Received: loss={loss!r}"
                )
        self.teachers = ()
        self.signature = None
        self.loss_weights = None
        self._weight = weight
        self._loss = loss

    def losses_for(self, compiled):
        """The losses that are added to one that a model is compiled with.

        Args:
          compiled: What the model's `loss` is.

        Returns:
          A `CodistillationLoss`, or a dict or list of such.

        Raises:
          ValueError: Which it is was not said and cannot be told.
        """
        if self._loss is not None:
            return self._loss
        return _map(
            lambda one: None if one is None else loss_lib.suited_to(one),
            compiled,
        )

    def plan(self, model, y_pred, sample_weight):
        """Returns the loss, factor and sample weights of each output.

        Args:
          model: The compiled student.
          y_pred: Its predictions.
          sample_weight: As in `compute_loss`.

        Returns:
          Three lists with an entry per output: `CodistillationLoss` or None,
          factor or None, sample weights or None.

        Raises:
          ValueError: It does not fit the outputs.
        """
        names = outputs_lib.names_of(
            y_pred, getattr(model, "output_names", None)
        )
        losses, scales = self.losses_for(model.loss), self.loss_weights
        if len(names) == 1:
            losses = losses if self._loss is not None else _of_one(losses)
            scales = _of_one(scales)
        losses = outputs_lib.spread(losses, y_pred, names, "loss")
        for name, loss in zip(names, losses, strict=True):
            if isinstance(loss, list):
                raise ValueError(
                    "Which loss of codistillation suits several losses of one "
                    "output cannot be told. Say so: Codistilled(..., "
                    "loss=CodistillationLoss(...)). Received: "
                    f"{len(loss)} losses of output {name!r}"
                )
        if not any(losses):
            raise ValueError(
                "No output has a loss of codistillation. Give one: "
                "Codistilled(..., loss=CodistillationLoss(...))."
            )
        scales = [
            # Those of several losses of one output are not the output's.
            None if isinstance(scale, (list, tuple)) else scale
            for scale in outputs_lib.spread(
                scales, y_pred, names, "loss_weights"
            )
        ]
        weights = outputs_lib.spread(
            sample_weight, y_pred, names, "sample_weight"
        )
        return losses, scales, weights

    def build(self, model, x, y_pred, plan):
        """Builds the added loss into the step that is traced.

        Args:
          model: The compiled student.
          x: What its predictions were made of.
          y_pred: Its predictions.
          plan: What `plan` returned.

        Returns:
          `(psi, weight, used)`: scalar tensors, two floats and a bool; psi is
          0 where no teacher is used.
        """
        losses, scales, weights = plan
        students = tree.flatten(y_pred)
        step = tf.cast(model.optimizer.iterations, tf.int64)
        since = step - self.burn_in_steps
        factor = self._weight
        if callable(factor):
            factor = factor(tf.maximum(since, 0))
        factor = tf.cast(factor, tf.float32)
        available = tf.stack(
            [teacher.available.read_value() for teacher in self.teachers]
        )
        active = (since >= 0) & tf.reduce_any(available) & (factor != 0)
        nothing = tf.zeros([], tf.float32)

        def distance(means):
            total = nothing
            for mean, loss, student, scale, weight in zip(
                means, losses, students, scales, weights, strict=True
            ):
                if loss is not None:
                    one = loss.from_targets(mean, student, weight)
                    one = tf.reduce_sum(tf.cast(one, tf.float32))
                    total += one if scale is None else scale * one
            return total

        def learn():
            sums, number = self._sum_of_targets(x, y_pred, losses, available)
            psi = tf.cond(
                number > 0,
                lambda: distance([a / tf.cast(number, a.dtype) for a in sums]),
                lambda: nothing,
            )
            return psi, number > 0

        psi, used = tf.cond(
            active, learn, lambda: (nothing, tf.constant(False))
        )
        return psi, factor, used

    def _sum_of_targets(self, x, y_pred, losses, available):
        """The teachers' targets, one sum per output, and of how many.

        A teacher whose predictions are not finite, as its training diverged,
        is not one of them.
        """
        students = tree.flatten(y_pred)

        def targets_of(teacher):
            outputs = teacher.outputs(x)
            tree.assert_same_structure(outputs, y_pred)
            targets = [
                tf.zeros([]) if loss is None else loss.targets(output)
                for loss, output in zip(
                    losses, tree.flatten(outputs), strict=True
                )
            ]
            finite = tf.reduce_all(
                [tf.reduce_all(tf.math.is_finite(one)) for one in targets]
            )
            targets = [
                tf.where(finite, one, tf.zeros_like(one)) for one in targets
            ]
            return targets, tf.cast(finite, tf.float32)

        def nobody():
            targets = [
                tf.zeros([])
                if loss is None
                else tf.zeros_like(loss.targets(student))
                for loss, student in zip(losses, students, strict=True)
            ]
            return targets, tf.zeros([])

        sums, number = nobody()
        for teacher, there in zip(
            self.teachers, tf.unstack(available), strict=True
        ):
            targets, finite = tf.cond(
                there, lambda teacher=teacher: targets_of(teacher), nobody
            )
            sums = [a + b for a, b in zip(sums, targets, strict=True)]
            number += finite
        return sums, number


def _of_one(value):
    """Returns the settings of several losses of one output as one entry."""
    is_several = isinstance(value, (list, tuple)) and len(value) > 1
    return [list(value)] if is_several else value


def _map(function, structure):
    """Like `tree.map_structure`, which drops what is None."""
    if isinstance(structure, dict):
        return {key: _map(function, one) for key, one in structure.items()}
    if isinstance(structure, (list, tuple)):
        return [_map(function, one) for one in structure]
    return function(structure)
