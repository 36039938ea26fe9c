"""Each worker's share of the data.

Training data is shared out over the workers; data for evaluation and
prediction is not, so that every worker that evaluates gets the same answer.
"""

import inspect

import keras
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist import quiet
from tfdist.parameter_server import guarding

_AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def distribute(dataset, config, store, before_training=None):
    """The dataset that this worker iterates over.

    Called by `strategy.experimental_distribute_dataset`, and by Keras for
    every `fit`, `evaluate` and `predict`.

    Args:
      dataset: A `tf.data.Dataset`. Its `AutoShardPolicy` says how it is
        shared out: FILE and DATA as TensorFlow defines them, AUTO (default)
        by file where there are enough files and no cache and else by element,
        OFF not at all.
      config: The `ClusterConfig`.
      store: The `ParameterStore`; its replicas are refreshed before an
        evaluation.
      before_training: Called, if given, before this worker begins to train.

    Returns:
      A `tf.data.Dataset`.

    Raises:
      ValueError: The data has fewer elements than there are shares.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "experimental_distribute_dataset takes a tf.data.Dataset, came: "
            f"{type(dataset).__name__}."
        )
    purpose, frame = _keras_purpose()
    if purpose == "evaluate":
        store.pull()
        store.freeing.refuse(
            [v.value for v in frame.f_locals["self"].variables]
        )
    if purpose == "train":
        if before_training is not None:
            before_training()
        store.watch(frame)
        if store.recovery is not None:
            guarding.guard(frame.f_locals["self"], store.call)
    if purpose in ("evaluate", "validate") or config.num_workers == 1:
        return dataset
    number, mine = config.data_share
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == _AutoShardPolicy.OFF:
        return dataset
    if policy == _AutoShardPolicy.AUTO:
        policy = _AutoShardPolicy.DATA
        if _has_enough_files(dataset, number):
            policy = _AutoShardPolicy.FILE
    shared = _share(dataset, policy, number, mine)
    cardinality = int(dataset.cardinality())
    if policy == _AutoShardPolicy.DATA and cardinality >= 0:
        if cardinality < number:
            raise ValueError(
                "The data set must have a batch (an element) for each worker "
                f"of the cluster. Received: {cardinality} for "
                f"{number} workers. Make the batches smaller, or "
                "start fewer workers."
            )
        size = cardinality // number + (mine < cardinality % number)
        shared = shared.apply(tf.data.experimental.assert_cardinality(size))
    return _with_policy(shared, _AutoShardPolicy.OFF)


def _with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    # TensorFlow warns of each change of an option.
    with quiet.quietly():
        return dataset.with_options(options)


def _share(dataset, policy, num_workers, index):
    return private_tensorflow.auto_shard_dataset(
        _with_policy(dataset, policy), num_workers, index
    )


def _has_enough_files(dataset, num_workers):
    """Whether `dataset` can be shared out by files, one or more per worker.

    TensorFlow says so only when the first element is asked for, and only to
    some workers; so all of them ask for that of the first worker, and come
    to the same answer.
    """
    if private_tensorflow.is_cached(dataset):
        return False
    try:
        shared = _share(dataset, _AutoShardPolicy.FILE, num_workers, 0)
        next(iter(shared), None)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError):
        return False
    return True


def from_function(dataset_fn, config):
    """The dataset that the user's function makes for this worker.

    Args:
      dataset_fn: Callable of a `tf.distribute.InputContext`; its
        `input_pipeline_id` is this worker's, of `num_input_pipelines`.
      config: The `ClusterConfig`.

    Returns:
      A `tf.data.Dataset` that is not shared out once more.
    """
    number, mine = config.data_share
    dataset = dataset_fn(
        tf.distribute.InputContext(
            num_input_pipelines=number,
            input_pipeline_id=mine,
            num_replicas_in_sync=1,
        )
    )
    return _with_policy(dataset, _AutoShardPolicy.OFF)


def _keras_purpose():
    """What a Keras model that is calling us wants the data for.

    Keras asks for distribution in the same way for training, validation and
    prediction, and only its callers know which it is.

    Returns:
      A tuple: "train", "validate" (inside `fit`), "evaluate" (`evaluate` or
      `predict`) or None when no Keras model is calling; and the frame of that
      call, or None.
    """
    frame = inspect.currentframe()
    try:
        while frame is not None:
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model):
                method = frame.f_code.co_name
                if method in ("evaluate", "predict"):
                    inside_fit = _is_called_from_fit(frame.f_back, model)
                    return "validate" if inside_fit else "evaluate", frame
                if method == "fit":
                    training = "epoch_iterator" in frame.f_locals
                    return "validate" if training else "train", frame
            frame = frame.f_back
        return None, None
    finally:
        del frame


def _is_called_from_fit(frame, model):
    while frame is not None:
        if frame.f_code.co_name == "fit":
            if frame.f_locals.get("self") is model:
                return True
        frame = frame.f_back
    return False
