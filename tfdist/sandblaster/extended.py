"""The `StrategyExtended` of Sandblaster: plain variables, steps of its own."""

import keras
import tensorflow as tf

from tfdist import guarded_steps
from tfdist import one_replica
from tfdist import private_keras_calls
from tfdist import private_keras_variables
from tfdist import quiet
from tfdist import running_fit
from tfdist.data_shares import shares
from tfdist.saving import callbacks


class SandblasterExtended(one_replica.WorkerExtended):
    """One replica in each process, which has all of the data.

    Args:
      container_strategy: The strategy that this belongs to.
      training: The `SandblasterTraining`.
      config: The `ClusterConfig`.
      device: Of this worker.
      files: The `Files` of this task.
    """

    def __init__(self, container_strategy, training, config, device, files):
        super().__init__(container_strategy, device, config.is_chief)
        self._training = training
        self._config = config
        self._files = files

    # Variables.

    def _create_variable(self, next_creator, **kwargs):
        if self._files.is_shared:
            for model in private_keras_variables.layers_under_way(keras.Model):
                self._training.left_out.see(model)
        variable = next_creator(**kwargs)
        # Keras's functions that save are refused by it: `refusals`.
        variable.files = self._files
        return variable

    def _validate_colocate_with_variable(self, colocate_with_variable):
        pass

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        context = one_replica.ReplicaContext(
            self._container_strategy(), replica_id_in_sync_group=0
        )
        with context, one_replica.foreign_objects_explained():
            return fn(*args, **kwargs)

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        return tf.nest.map_structure(one_replica.identity, value)

    def _update(self, var, fn, args, kwargs, group):
        return fn(var, *args, **kwargs)

    # Input.

    def _experimental_distribute_dataset(self, dataset, options):
        if private_keras_calls.data_request().purpose == "train":
            dataset = _whole(dataset)
        return shares.distribute(
            dataset, self._config, self._before_data, reads_once=True
        )

    def _before_data(self, request, number):
        purpose, frame, _ = request
        callbacks.see_request(request, self._files)
        if purpose not in ("train", "evaluate"):
            return None
        model = private_keras_calls.model_of(frame)
        call = None
        if purpose == "train":
            callbacks.see_ends(private_keras_calls.callbacks_of(frame))
            call = self._training.watch(frame, running_fit.begin(frame))
        self._training.left_out.see(model)
        if call is None:
            self._training.left_out.warn(model)
            return None
        guarded_steps.guard(model, self._training.call)
        # A number of 0 would mean none.
        return call + 1

    def _distribute_datasets_from_function(self, dataset_fn, options):
        raise NotImplementedError(
            "`distribute_datasets_from_function` must not be called under "
            "SandblasterStrategy, where each worker computes any portion of "
            "the data: give `fit` the whole data set."
        )


def _whole(dataset):
    """A data set that is not shared out: each worker computes any portion."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    with quiet.quietly():  # It warns of each change of an option.
        return dataset.with_options(options)
