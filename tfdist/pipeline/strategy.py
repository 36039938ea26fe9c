"""`tf.distribute.Strategy` for models that are pipelines."""

from collections.abc import Sequence
import contextlib
from typing import Any
from typing import Literal

import keras
import tensorflow as tf
from typing_extensions import Unpack

from tfdist import one_replica
from tfdist import private_keras_building
from tfdist.pipeline import pipelined
from tfdist.pipeline import stages as stages_lib
from tfdist.strategies import fault_tolerance
from tfdist.strategies import options


class PipelineStrategy(tf.distribute.Strategy):
    """Trains one model whose stages are on several devices at once.

    A batch is cut into micro-batches, which pass through the stages one after
    the other, so that the stages work at the same time (GPipe, Huang et al.
    2019; 1F1B and PipeDream, Narayanan et al. 2019 and 2021).

    ```python
    strategy = tfdist.PipelineStrategy(stages=4, micro_batches=16)
    with strategy.scope():
        model = strategy.pipeline(keras.Sequential([...]))
        model.compile(...)
    model.fit(...)
    ```

    With M micro-batches and K stages of equal cost at most M K / (M + K - 1)
    times as fast as one device: a batch should have 4 K micro-batches or
    more, each large enough to keep a device busy. To all of Keras it is a
    strategy with one replica. The same pipeline without a strategy is
    `tfdist.pipeline.pipeline`.

    Args:
      stages: Their number, for stages of about the same estimated work; or a
        list of names of layers, with each of which a further stage begins; or
        a list of lists of layers' names or patterns.
      micro_batches: Into how many a batch is cut, M.
      schedule: "gpipe", "1f1b", "pipedream", "pipedream_2bw", "spectrain" or
        "ftpipe"; the first two have the gradient of the whole batch.
      devices: One for each stage, such as ["GPU:0", "GPU:1"], or a list of
        replicas, which take its micro-batches in turn. Default: the
        first GPUs, without any the first logical CPUs.
      recompute: With the first two, whether only the inputs of stages are
        kept for the backward pass, which computes the rest again.
      vertical_sync: With "pipedream", whether all stages use the version of
        weights that the first one uses.

    Raises:
      ValueError: An argument is not allowed, or not with this schedule.
    """

    def __init__(
        self,
        stages: int | Sequence[Any],
        micro_batches: int = 8,
        schedule: Literal[
            "gpipe", "1f1b", "pipedream", "pipedream_2bw", "spectrain", "ftpipe"
        ] = "gpipe",
        devices: Sequence[Any] | None = None,
        recompute: bool = False,
        vertical_sync: bool = False,
        **unknown: Unpack[options.Unknown],
    ):
        fault_tolerance.refuse(unknown, type(self))
        self._options = {
            "micro_batches": micro_batches,
            "schedule": schedule,
            "recompute": recompute,
            "vertical_sync": vertical_sync,
        }
        options = pipelined.PipelineOptions(**self._options)
        self._stages = stages
        self._devices = pipelined.devices_of(stages, devices)
        pipelined.check(options, self._devices)
        super().__init__(_PipelineExtended(self, self._devices))

    def pipeline(self, model: keras.Model) -> keras.Model:
        """Cuts a model into this strategy's stages, on its devices.

        Args:
          model: A built sequential or functional `keras.Model` that was made
            under `scope()`.

        Returns:
          The same model.

        Raises:
          ValueError: It cannot be cut like that, or was made elsewhere.
        """
        # Within a scope the attribute of a model that was made without any
        # strategy is that scope's; its variables know better.
        created_here = self.extended.variable_created_in_scope
        if model.distribute_strategy is not self or not all(
            created_here(variable.value) for variable in model.variables
        ):
            raise ValueError(
                f"Model {model.name!r} was created outside this strategy's "
                "scope: build it, and compile it, under strategy.scope()."
            )
        pipelined.pipeline(model, self._stages, self._devices, **self._options)
        private_keras_building.build_for_new_iterator(model)
        return model


options.write_out(PipelineStrategy, PipelineStrategy)


class _PipelineExtended(one_replica.OneReplicaExtended):
    """One replica, whose variables are each on a device of their own."""

    def __init__(self, container_strategy, devices):
        super().__init__(container_strategy)
        names = [name for d in devices for name in stages_lib.resolve(d)]
        self._devices = tuple(dict.fromkeys(names))
        self._is_in_pipeline = False

    @contextlib.contextmanager
    def pipelined_step(self):
        """Within it, variables are updated by a pipeline's step."""
        before, self._is_in_pipeline = self._is_in_pipeline, True
        try:
            yield
        finally:
            self._is_in_pipeline = before

    # Variables.

    def _create_variable(self, next_creator, **kwargs):
        reference = kwargs.pop("colocate_with", None)
        if reference is None:
            return next_creator(**kwargs)
        with tf.device(reference.device):
            return next_creator(**kwargs)

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, tf.Variable):
            raise ValueError(
                "Argument `colocate_with_variable` must be a tf.Variable. "
                f"Received: colocate_with_variable={colocate_with_variable!r}"
            )

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        with one_replica.ReplicaContext(
            self._container_strategy(), replica_id_in_sync_group=0
        ):
            return fn(*args, **kwargs)

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        return value

    def _replica_ctx_update(self, var, fn, args=(), kwargs=None, group=True):
        if not self._is_in_pipeline:
            raise ValueError(
                f"Variable {var.name!r} would be updated by a step that is "
                "not a pipeline's: PipelineStrategy trains models that "
                "`model = strategy.pipeline(model)` has cut into stages, with "
                "fit or train_on_batch."
            )
        return self._update(var, fn, args, kwargs or {}, group)

    def _update(self, var, fn, args, kwargs, group):
        with tf.device(var.device or None):
            return fn(var, *args, **kwargs)

    # Input.

    def _experimental_distribute_dataset(self, dataset, options):
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return dataset_fn(tf.distribute.InputContext())

    # What it looks like from outside.

    @property
    def worker_devices(self):
        return self._devices

    @property
    def parameter_devices(self):
        return self.worker_devices

    @property
    def experimental_between_graph(self):
        return False

    @property
    def should_checkpoint(self):
        return True

    @property
    def should_save_summary(self):
        return True
