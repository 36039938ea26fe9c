"""A Keras model whose `fit` trains it as a pipeline of stages."""

import collections.abc
import contextlib
import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import dynamic_subclasses
from tfdist import model_optimizers
from tfdist import private_keras
from tfdist import private_keras_building
from tfdist.pipeline import asynchronous
from tfdist.pipeline import micro_batches as micro_batches_lib
from tfdist.pipeline import schedules
from tfdist.pipeline import stages as stages_lib
from tfdist.pipeline import synchronous
from tfdist.placement import devices as devices_lib
from tfdist.placement import layers
from tfdist.placement import moving
from tfdist.placement import placed
from tfdist.placement.place import place


@dataclasses.dataclass(frozen=True)
class PipelineOptions:
    """Settings of a pipeline; see `pipeline` for the arguments.

    Raises:
      ValueError: An argument is not allowed, or not with this schedule.
    """

    micro_batches: int = 8
    schedule: str = "gpipe"
    recompute: bool = False
    vertical_sync: bool = False

    def __post_init__(self):
        checks.one_of("schedule", self.schedule, schedules.NAMES)
        count = checks.count("micro_batches", self.micro_batches)
        object.__setattr__(self, "micro_batches", count)
        for name in ("recompute", "vertical_sync"):
            given = checks.flag(name, getattr(self, name))
            object.__setattr__(self, name, given)
        if self.recompute and self.schedule not in schedules.SYNCHRONOUS:
            raise ValueError(
                f"recompute=True came for schedule={self.schedule!r}, which "
                "always recomputes: it is a choice for "
                f"{' and '.join(schedules.SYNCHRONOUS)} only."
            )
        if self.vertical_sync and self.schedule != "pipedream":
            raise ValueError(
                f"vertical_sync=True came for schedule={self.schedule!r}; "
                "only pipedream has several versions to choose from."
            )

    def executor(self, model, stages):
        """Returns the pipeline that trains a model cut into `stages`."""
        if self.schedule in schedules.SYNCHRONOUS:
            return synchronous.SynchronousPipeline(
                model,
                stages,
                self.schedule,
                self.micro_batches,
                self.recompute,
            )
        return asynchronous.AsynchronousPipeline(
            model,
            stages,
            self.schedule,
            self.micro_batches,
            self.vertical_sync,
        )


def pipeline(
    model: keras.Model, stages: Any, devices: Any = None, **options: Any
) -> keras.Model:
    """Cuts a model into stages on several devices, and lets `fit` pipeline it.

    The model stays the same object with the same names, weights and saved
    file; `evaluate` and `predict` run it stage by stage. Needs no strategy;
    with "gpipe" and "1f1b" it may be the model of a worker of a strategy with
    servers. `PipelineStrategy` is for those who want one.

    ```python
    model = keras.Sequential([...])
    tfdist.pipeline.pipeline(model, stages=4, micro_batches=16)
    model.compile(...)
    model.fit(...)
    ```

    Args:
      model: A built `keras.Sequential` or functional `keras.Model` with
        Keras's own `train_step` and `call`, compiled or not.
      stages: Their number, for stages of about the same estimated work; or a
        list of names of layers, with each of which a further stage begins; or
        a list of lists of layers' names or patterns.
      devices: One for each stage, as TensorFlow names them. With "gpipe" and
        "1f1b" a stage may have a list of devices: replicas, which take its
        micro-batches in turn and whose gradients are summed. So
        `stages=1, devices=[["GPU:0", "GPU:1"]], micro_batches=2` is data
        parallelism within this process. Default: the first GPUs of this
        process, without any its first logical CPUs.
      **options: `micro_batches` (8): into how many a batch is cut; 4 for each
        stage keep the devices busy (Huang et al. 2019, section 2.2).
        `schedule` ("gpipe"): one of `schedules.NAMES`. `recompute` (False):
        with "gpipe" and "1f1b", whether only the inputs of stages are kept
        for the backward pass. `vertical_sync` (False): with "pipedream",
        whether all stages use the version of weights that the first one uses.

    Returns:
      The model.

    Raises:
      ValueError: The model cannot be cut, a device does not exist, there are
        fewer devices than stages, or an option is not allowed.
    """
    options = PipelineOptions(**options)
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Argument `model` must be a keras.Model. Received: model={model!r}"
        )
    if isinstance(model, Pipelined):
        raise ValueError(
            f"Model {model.name!r} is a pipeline already: build it again to "
            "cut it in another way."
        )
    for method in ("train_step", "call"):
        if not micro_batches_lib.is_stock(model, method):
            raise ValueError(
                f"{type(model).__name__}.{method} is the model's own, which a "
                "pipeline would have to replace: give it a Sequential or "
                "functional model with Keras's own."
            )
    devices = devices_of(stages, devices)
    check(options, devices)
    own = _Pipeline(stages_lib.split(model, stages, devices), options)
    if model.compiled:
        # Before anything of the model has changed: it may be refused.
        own.compiled(model)
    _put(model, own.stages)
    dynamic_subclasses.specialize(model, Pipelined)
    # Hidden from Keras, which would look for layers and weights inside.
    model._tfdist_pipeline = own
    return model


def check(options, devices):
    """Refuses options that do not go with the stages.

    Args:
      options: `PipelineOptions`.
      devices: What `devices_of` gave.

    Raises:
      ValueError: The schedule takes no replicas, or there are too few
        micro-batches.
    """
    replicas = max(map(len, map(stages_lib.resolve, devices)))
    if replicas > 1 and options.schedule not in schedules.SYNCHRONOUS:
        raise ValueError(
            f"devices has a stage with replicas, and schedule="
            f"{options.schedule!r} takes none: use gpipe or 1f1b, or one "
            "device for each stage."
        )
    if replicas > options.micro_batches:
        raise ValueError(
            f"devices has a stage with {replicas} replicas, which take "
            f"micro-batches in turn, and there are {options.micro_batches}: "
            "use as many micro_batches at least."
        )
    if options.schedule == "pipedream_2bw":
        if options.micro_batches < len(devices):
            raise ValueError(
                f"micro_batches={options.micro_batches} came for "
                f"pipedream_2bw with {len(devices)} stages, and two versions "
                "of weights are enough for as many micro-batches at least."
            )


def devices_of(stages, devices=None):
    """Full names of devices, one for each stage.

    Args:
      stages: As in `pipeline`.
      devices: As in `pipeline`.

    Returns:
      A list of strings, or of tuples of them for replicas.

    Raises:
      ValueError: `stages` is none of what it may be, there are more or fewer
        devices than stages, or one does not exist.
    """
    num_stages = stages_lib.count(stages)
    if devices is not None:
        if isinstance(devices, str) or not isinstance(
            devices, collections.abc.Iterable
        ):
            raise ValueError(
                "Argument `devices` must be a list with one for each stage. "
                f"Received: devices={devices!r}"
            )
        devices = list(devices)
        if len(devices) != num_stages:
            raise ValueError(
                "Argument `devices` must have one for each of the "
                f"{num_stages} stages. Received: devices={devices}"
            )
        names = [stages_lib.resolve(device) for device in devices]
        return [name[0] if len(name) == 1 else name for name in names]
    known = devices_lib.of_this_process()
    if len(known) < num_stages:
        raise ValueError(
            f"{num_stages} stages need as many devices, and there are "
            f"{len(known)}: {', '.join(map(devices_lib.short, known))}. Use "
            "fewer stages, or name devices, of which one may be there several "
            "times. (Logical CPU devices are made by "
            "tf.config.set_logical_device_configuration.)"
        )
    return known[:num_stages]


def _put(model, stages):
    """Puts the layers of each stage, and what is theirs, on its device."""
    homes = {}
    for stage in stages:
        for operation in stage.operations:
            # A layer that is called in several stages: its own is the first.
            homes.setdefault(operation.name, stage.device)
    place(model, homes)


class _Pipeline:
    """Stages, options and executor of one pipelined model."""

    def __init__(self, stages, options):
        self.stages = stages
        self.options = options
        self.executor = None
        self.stays_as_it_is = False

    def compiled(self, model):
        strategy = private_keras.strategy_of(model)
        own = hasattr(getattr(strategy, "extended", None), "pipelined_step")
        if own:
            model_optimizers.check_scope_of(model)
        schedule = self.options.schedule
        if strategy and not own and schedule not in schedules.SYNCHRONOUS:
            raise ValueError(
                f"schedule={schedule!r} updates each stage by itself, and "
                f"{type(strategy).__name__} has to see whole updates: use "
                f"{' or '.join(schedules.SYNCHRONOUS)} with it."
            )
        for variable in model.trainable_variables:
            if getattr(variable, "overwrite_with_gradient", False):
                raise ValueError(
                    f"Variable {variable.path!r} takes what comes as its "
                    "gradient for its new value (float8), of which a pipeline "
                    "would take the sum over micro-batches: train the model "
                    "without a pipeline."
                )
        for part in layers.parts(model):
            if getattr(part.layer, "stateful", False):
                raise ValueError(
                    f"Layer {part.layer.name!r} is stateful: it goes on with "
                    "its state of the batch before, of as many examples, and "
                    "a pipeline cuts batches. Use stateful=False."
                )
            if private_keras_building.is_rematerialized(part.layer):
                raise ValueError(
                    f"Layer {part.layer.name!r} was made in a "
                    "keras.RematScope: in a pipeline its weights would have no "
                    "gradients. Use `recompute=True` of the pipeline instead."
                )
        calls = [call.operation for call in stages_lib.calls_of(model)[0]]
        known = [x for stage in self.stages for x in stage.operations]
        if list(map(id, calls)) != list(map(id, known)):
            raise ValueError(
                f"Layers of model {model.name!r} have been added or removed "
                "since it was cut into stages: build it again, and cut it "
                "then."
            )
        self.executor = self.options.executor(model, self.stages)

    def drain(self):
        """Lets what an asynchronous schedule has in flight come back."""
        drain = getattr(self.executor, "drain", None)
        if drain and not self.stays_as_it_is and tf.executing_eagerly():
            with self.staying_as_it_is():
                drain()

    @contextlib.contextmanager
    def staying_as_it_is(self):
        """Scope within which `drain` does nothing."""
        before, self.stays_as_it_is = self.stays_as_it_is, True
        try:
            yield
        finally:
            self.stays_as_it_is = before


class Pipelined(placed.PlacedModel):
    """A model whose training step is that of a pipeline."""

    @property
    def stages(self):
        """Its stages, a tuple of `Stage`."""
        return tuple(self._tfdist_pipeline.stages)

    def compile(self, *args, **kwargs):
        """As Keras's, without `jit_compile`.

        Raises:
          ValueError: Loss or optimizer are none that the schedule can train
            with, or `jit_compile=True`.
        """
        self._tfdist_pipeline.drain()
        # Nothing of before trains a model whose compilation is refused.
        self._tfdist_pipeline.executor = None
        super().compile(*args, **kwargs)
        self._tfdist_pipeline.compiled(self)

    def train_step(self, data):
        """One batch through the pipeline."""
        if self._tfdist_pipeline.options.schedule in schedules.SYNCHRONOUS:
            # What layers have got since. Others keep functions of their own,
            # which know the variables of `compile`.
            moving.settle(self)
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise ValueError(
                f"Model {self.name!r} is a pipeline, and "
                f"{type(strategy).__name__} has "
                f"{strategy.num_replicas_in_sync} replicas of a model on as "
                "many devices: use a strategy with one replica for each "
                "process, such as those of tfdist."
            )
        if self._tfdist_pipeline.executor is None:
            raise ValueError(
                f"Model {self.name!r} is a pipeline whose last `compile` has "
                "failed: compile it with what its schedule can train with."
            )
        notice = getattr(strategy.extended, "pipelined_step", None)
        with notice() if notice else contextlib.nullcontext():
            # `train_on_batch` gives arrays to a step that is not traced.
            data = keras.tree.map_structure(
                lambda t: tf.constant(t) if isinstance(t, np.ndarray) else t,
                data,
            )
            return self._tfdist_pipeline.executor.train_step(data)

    def drain(self):
        """Lets what an asynchronous schedule has in flight come back.

        `fit`, and the methods of the model that read or change weights or
        metrics, do so by themselves. A loop of one's own need not between its
        batches, but before it reads `weights` or anything else directly.
        """
        self._tfdist_pipeline.drain()

    def fit(self, *args, **kwargs):
        """As Keras's."""
        # What a fit that was broken off has left is none of this one's.
        self._tfdist_pipeline.drain()
        history = super().fit(*args, **kwargs)
        self._tfdist_pipeline.drain()
        return history

    def train_on_batch(self, *args, **kwargs):
        """As Keras's, which resets metrics first: the pipeline stays full."""
        with self._tfdist_pipeline.staying_as_it_is():
            return super().train_on_batch(*args, **kwargs)

    @property
    def quantize(self):
        """Keras's method, called when what is in flight has come back.

        It is an attribute of each model, which Keras makes.
        """
        method = super().quantize

        @functools.wraps(method)
        def quantize(*args, **kwargs):
            self._tfdist_pipeline.drain()
            return method(*args, **kwargs)

        return quantize


# Methods that read or change weights or metrics. Keras calls the last two in
# `keras.saving.load_weights` and `save_model`.
_AFTER_ALL = (
    "evaluate",
    "predict",
    "test_on_batch",
    "predict_on_batch",
    "get_metrics_result",
    "reset_metrics",
    "get_state_tree",
    "set_state_tree",
    "get_weights",
    "set_weights",
    "save",
    "save_weights",
    "load_weights",
    "export",
    "load_own_variables",
    "save_own_variables",
)


def _after_all(name):
    """Keras's method, called when what is in flight has come back."""

    @functools.wraps(getattr(keras.Model, name))
    def method(self, *args, **kwargs):
        self._tfdist_pipeline.drain()
        return getattr(super(Pipelined, self), name)(*args, **kwargs)

    return method


for _name in _AFTER_ALL:
    setattr(Pipelined, _name, _after_all(_name))
