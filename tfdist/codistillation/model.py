"""The loss of codistillation inside `model.fit`."""

import contextlib
import inspect
import threading
from typing import Any

import keras
from keras import ops
from keras import tree
import tensorflow as tf

from tfdist import compute_loss
from tfdist import private_keras
from tfdist.codistillation.added_loss import AddedLoss
from tfdist.placement import placed
from tfdist.sandblaster.lbfgs import LBFGS

# What the wrapper does as Keras does, and not as the wrapped model would.
_STOCK = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "get_metrics_result",
    "metrics",
)


class CodistillationMixin:
    """Adds the distance from teachers to the loss of any `keras.Model`.

    For models with a `train_step` or a `compute_loss` of their own; all others
    need only be wrapped in `Codistilled`. It stands before the model's class:

    ```python
    class MyCodistilledModel(CodistillationMixin, MyModel):
        pass

    model = MyCodistilledModel(...)
    model.configure_codistillation(burn_in_steps=1000)
    ```

    A `train_step` of one's own has to call `self.compute_loss` with `x`,
    `y_pred` and `training=True`, which it does if it was made from Keras's.
    If it uses `self.losses`, it has to read them before: teachers call the
    layers, and each call begins the list again.
    """

    _codistillation = None
    _codistillation_tracker = None
    _is_evaluating = False

    def configure_codistillation(
        self, *, burn_in_steps: int, weight: float = 1.0, loss: Any = None
    ) -> None:
        """Says what is added to the loss; see `Codistilled` for arguments."""
        self._codistillation = AddedLoss(burn_in_steps, weight, loss)
        self._codistillation_tracker = keras.metrics.Mean(
            name="codistillation_loss"
        )

    @property
    def burn_in_steps(self) -> int:
        """Updates before anything is added to the loss, an int."""
        return self._configured().burn_in_steps

    def _configured(self):
        if self._codistillation is None:
            raise ValueError(
                f"{self.name!r} is a CodistillationMixin that is not "
                "configured: call configure_codistillation first."
            )
        return self._codistillation

    @property
    def traced_signature(self) -> tuple[Any, Any] | None:
        """The signature of training steps: `(x, outputs)` of `TensorSpec`.

        None before the first step.
        """
        return self._configured().signature

    def set_teachers(self, teachers: Any) -> None:
        """Replaces the teachers; what was traced before is traced again.

        Args:
          teachers: List of `Teacher`; may be empty.
        """
        # Hidden from Keras: these are nothing of the model's own.
        self._configured().teachers = tuple(teachers)
        if self.compiled:
            self._note_loss_weights()
            self.make_train_function(force=True)

    def _note_loss_weights(self):
        try:
            config = self.get_compile_config() or {}
        except TypeError as error:
            # Something that Keras cannot save; the weights can be.
            if isinstance(self.loss, (dict, list, tuple)):
                raise ValueError(
                    "The loss_weights of the model are not known, as what it "
                    "is compiled with cannot be serialized: give its losses "
                    f"and metrics a get_config. {error}"
                ) from error
            config = {}
        self._codistillation.loss_weights = config.get("loss_weights")

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = compute_loss.call(
            super().compute_loss, x, y, y_pred, sample_weight, training
        )
        added = self._codistillation
        if not training or self._is_evaluating or added is None:
            return loss
        if x is None:
            raise ValueError(
                f"{type(self).__name__}.train_step calls compute_loss without "
                "x, which teachers have to see: call compute_loss(x=x, y=y, "
                "y_pred=y_pred, ...)."
            )
        x = self._seen_by_student(x)
        added.signature = tree.map_structure(_spec, (x, y_pred))
        plan = added.plan(self, y_pred, sample_weight)
        if not added.teachers:
            return loss
        psi, weight, used = added.build(self, x, y_pred, plan)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        # As Keras's own tracker of the loss: by examples.
        first = next(one for one in tree.flatten(x) if one is not None)
        examples = ops.cast(tf.shape(first)[0], "float32")
        self._codistillation_tracker.update_state(
            psi * replicas, sample_weight=examples * ops.cast(used, "float32")
        )
        # Keras trains on the sum of a loss that has a value per example.
        number = ops.cast(ops.size(loss), loss.dtype)
        return loss + ops.cast(weight * psi, loss.dtype) / number

    def _seen_by_student(self, x):
        """Returns the inputs that the student's predictions were made from."""
        return x

    def get_metrics_result(self) -> dict[str, Any]:
        """Those of the model; in training also `codistillation_loss`."""
        found = super().get_metrics_result()
        if self._is_evaluating and self._codistillation_tracker is not None:
            # Nothing is distilled in evaluation. `metrics` has the tracker
            # all the same: workers add up the states of all of them.
            found.pop(self._codistillation_tracker.name, None)
        return found

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.fit`; if it fails, its teachers leave with it."""
        added = self._codistillation
        before = added.teachers if added is not None else ()
        try:
            return super().fit(*args, **kwargs)
        except BaseException:
            # No callback is told of the end.
            if added is not None and added.teachers != before:
                added.teachers = before
                self.train_function = None  # Keras makes it when needed.
            raise

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.evaluate`: teachers have no part in it."""
        with self._evaluation():
            return super().evaluate(*args, **kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.test_on_batch`: teachers have no part in it."""
        with self._evaluation():
            return super().test_on_batch(*args, **kwargs)

    @contextlib.contextmanager
    def _evaluation(self):
        before, self._is_evaluating = self._is_evaluating, True
        try:
            yield
        finally:
            self._is_evaluating = before


class Codistilled(CodistillationMixin, keras.Model):
    """A model that also learns from its peers' predictions.

    Wraps a Sequential, Functional or subclassed model without changing it.
    After a burn-in, the loss of a training step is

        phi(y, F(x)) + weight * psi(mean over peers j of F_j(x), F(x))

    with phi the loss that it is compiled with and psi a
    `CodistillationLoss` (Anil et al. 2018, arXiv 1804.03235, Algorithm 1).
    F_j is what the callback `Codistillation` last got from group j, in
    inference mode, on the same batch. Without that callback, before the
    burn-in is over, and while no peer has given anything yet, the loss is phi
    to the bit.

    ```python
    with strategy.scope():
        model = tfdist.codistillation.Codistilled(
            build_model(), burn_in_steps=1000
        )
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, callbacks=[tfdist.codistillation.Codistillation(...)])
    ```

    Random augmentation belongs into the data, or into `augmentation`: layers
    within the model are in inference mode when a teacher is asked, so that it
    would see another picture than the student. Saving (`save`, `save_weights`,
    `export`, checkpoints of callbacks) is of the wrapped model with the
    optimizer's state: files are those of plain training.

    Args:
      student: A `keras.Model` with Keras's own steps, `compute_loss` and
        `compute_metrics`; for others there is `CodistillationMixin`.
      burn_in_steps: Updates of the group's optimizer (`optimizer.iterations`)
        before teachers count, so many that the model has begun to be of use:
        to distil from untrained teachers does harm. Exact: the first update
        with teachers is that after `burn_in_steps` others.
      weight: Of psi: a float of at least 0, or a
        `keras.optimizers.schedules.LearningRateSchedule`, or another callable
        that takes the updates since the end of the burn-in (scalar int64
        tensor) and returns a scalar tensor.
      loss: psi: a `CodistillationLoss`, or for several outputs a dict by name
        or a list of such, None for an output without. Default: what suits
        the loss that the model is compiled with. Several are added up with
        the `loss_weights` of `compile`.
      augmentation: A `keras.layers.Layer`, such as a `keras.Sequential` of
        random layers, that is applied to each training batch before both the
        student and its teachers see it; None for none.
      name: Of the model.

    Attributes:
      student: The wrapped model.

    Raises:
      ValueError: An argument is malformed, or the model has a `train_step`,
        `compute_loss` or the like of its own.
    """

    def __init__(
        self,
        student: keras.Model,
        *,
        burn_in_steps: int,
        weight: float = 1.0,
        loss: Any = None,
        augmentation: Any = None,
        name: str = "codistilled",
    ):
        _check_student(student)
        # Inputs reach the student, and teachers, with the dtype they have.
        # By the policy Keras tells whether the loss has to be scaled.
        super().__init__(name=name, autocast=False, dtype=student.dtype_policy)
        self.student = student
        self.augmentation = augmentation
        self.configure_codistillation(
            burn_in_steps=burn_in_steps, weight=weight, loss=loss
        )
        # Of each replica, which has a thread of its own while it is traced.
        self._augmented = threading.local()
        if student.built:
            self.built = True

    @property
    def output_names(self) -> list[str]:
        """The names of the student's outputs, where it has such."""
        return self.student.output_names

    @property
    def metrics(self) -> list[Any]:
        """Those of the model; also the student's own, as if it were alone."""
        # Keras leaves out those of a model within a model.
        return super().metrics + private_keras.own_metrics(self.student)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)
        self._codistillation.losses_for(self.loss)  # Is there one?
        bound = inspect.signature(keras.Model.compile).bind(
            self, *args, **kwargs
        )
        arguments = dict(bound.arguments)
        arguments.pop("self")
        self._codistillation.loss_weights = arguments.get("loss_weights")
        # So that it is saved as if it had been trained by itself.
        arguments.update(optimizer=self.optimizer, auto_scale_loss=False)
        self.student.compile(**arguments)

    def _note_loss_weights(self):
        pass  # Done in `compile`.

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if self.augmentation is not None and training:
            inputs = self.augmentation(inputs, training=True)
            self._augmented.inputs = inputs
        return self.student(inputs, training=training)

    def _seen_by_student(self, x):
        return self._augmented.__dict__.pop("inputs", x)

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the student; see `keras.Model.save`."""
        return self.student.save(filepath, *args, **kwargs)

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Saves the student's weights; see `keras.Model.save_weights`."""
        return self.student.save_weights(filepath, *args, **kwargs)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Loads the student's weights; see `keras.Model.load_weights`."""
        return self.student.load_weights(filepath, *args, **kwargs)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Exports the student; see `keras.Model.export`."""
        return self.student.export(filepath, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError(
            "A Codistilled is not saved; save its student, which `save` does."
        )


def check_learns_from_teachers(model):
    """Refuses models that teachers cannot teach.

    Raises:
      ValueError: The model has no loss of codistillation, or an optimizer for
        which its loss must not change.
    """
    if not isinstance(model, CodistillationMixin):
        raise ValueError(
            "Argument `model` must have the loss of codistillation: "
            "tfdist.codistillation.Codistilled(model, burn_in_steps=...). "
            f"Received: a model of type {type(model).__name__}"
        )
    if isinstance(model.optimizer, LBFGS):
        raise ValueError(
            "Argument `optimizer` of a model that teachers teach must be one "
            "of Keras's: LBFGS (SandblasterStrategy) minimizes one loss, and "
            f"each new teacher changes it. Received: {model.optimizer!r}"
        )


def _spec(one):
    """The `tf.TensorSpec` of a tensor; None of an input that is left out."""
    return None if one is None else tf.TensorSpec(one.shape, one.dtype)


def _check_student(student):
    if not isinstance(student, keras.Model):
        raise ValueError(
            "Argument `student` must be a keras.Model. Received: "
            f"student={student!r}"
        )
    if isinstance(student, CodistillationMixin):
        raise ValueError(f"{student.name!r} has codistillation in it already.")
    if isinstance(student, placed.PlacedModel):
        raise ValueError(
            f"{student.name!r} is placed on devices, or a pipeline: wrap the "
            "model first, and place the wrapper "
            "(tfdist.placement.place(Codistilled(model, ...), ...)). A "
            "pipeline cannot be codistilled."
        )
    for method in _STOCK:
        if getattr(type(student), method) is not getattr(keras.Model, method):
            raise ValueError(
                f"{type(student).__name__} has its own {method}, which "
                "a wrapper would not call. Put "
                "tfdist.codistillation.CodistillationMixin before its class: "
                f"class Codistilled{type(student).__name__}("
                f"CodistillationMixin, {type(student).__name__})."
            )
