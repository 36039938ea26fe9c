"""Each worker's share of the data.

Training data is shared out over the workers; data for evaluation and
prediction is not, so that every worker evaluates on the same examples.
"""

import itertools
import math

import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist import private_keras_data
from tfdist import private_pipelines
from tfdist import private_tensorflow
from tfdist import quiet
from tfdist.data_shares import arrays
from tfdist.data_shares import batches
from tfdist.data_shares import epoch_data
from tfdist.data_shares import fresh_pipelines
from tfdist.data_shares import generators
from tfdist.data_shares import iterators
from tfdist.data_shares import py_datasets
from tfdist.data_shares import strategy_order

_AutoShardPolicy = tf.data.experimental.AutoShardPolicy
# Numbers of the calls of this process in training loops of the user's.
_loops = itertools.count(1)


def distribute(
    dataset,
    config,
    before,
    compare=lambda checksum, is_seed: None,
    begin=lambda size, skips: (0, 0),
    queue=None,
    reads_once=False,
):
    """The data that this worker iterates over.

    Called by `strategy.experimental_distribute_dataset`, and by Keras for
    every `fit`, `evaluate` and `predict`.

    Args:
      dataset: A `tf.data.Dataset`. Its `AutoShardPolicy` says how it is
        shared out: FILE and DATA as TensorFlow defines them, AUTO (default)
        by file where there are enough files, no cache, and no stage that
        counts elements, and else by element, OFF not at all. What Keras makes
        of a Python generator: `generators`.
      config: The `ClusterConfig`.
      before: Called before the data is looked at, with the `DataRequest`
        and the number of shares (None where the data is not shared out).
        Returns the order number of the data: that of the call of `fit`,
        the same on all workers, or one of a call that callbacks make within
        it; None outside of `fit`.
      compare: Called for shuffled arrays and a `PyDataset` in `fit`, with a
        callable that gives a number, the same on all workers, and whether it
        is of the seed of the order. Else it is of the first batch.
      begin: Called in `fit` with the number of batches of this worker's share
        (0 where it is not known) and whether some of an epoch can be left
        out. Returns how many epochs from `initial_epoch` on, and batches of
        the first one after these, are left out.
      queue: Where workers take portions instead of shares, a callable of
        `dataset`, the Keras `DataAdapter`, the frame of `fit` (each None
        outside of it) and that number, which is the call's own: there are no
        calls within one. Returns `make_epoch` of `EpochData`. Else None.
      reads_once: Whether a call of `fit` reads its data in one epoch alone:
        wherever it begins, it reads the first order, as all workers do.

    Returns:
      A `tf.data.Dataset`; for Keras an `EpochData`.

    Raises:
      ValueError: The data is known to have fewer elements, or files, than
        there are shares, counts or pairs elements that FILE would share out
        by file, or was made before the strategy.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "Argument `dataset` must be a tf.data.Dataset. Received: "
            f"dataset={type(dataset).__name__}"
        )
    _check_made_after_strategy(dataset)
    if config.is_local:
        strategy_order.warn_if_made_before(dataset)
    request = private_keras_calls.data_request()
    purpose, frame, adapter = request
    policy = dataset.options().experimental_distribute.auto_shard_policy
    is_whole = policy == _AutoShardPolicy.OFF
    call = before(request, None if is_whole else _shares(config)[0])
    shared, steps_per_epoch, number, left_out = dataset, None, 1, (0, 0)
    make_epoch, passed, num_steps, first = None, lambda: 0, None, 0
    if queue is not None and purpose not in ("evaluate", "validate"):
        make_epoch = queue(dataset, adapter, frame, call)
        begin(0, False)
    elif purpose not in ("evaluate", "validate"):
        if adapter is not None:
            steps_per_epoch = private_keras_calls.steps_per_epoch_of(frame)
            if steps_per_epoch:
                epochs = private_keras_calls.epochs_of(frame)
                num_steps = steps_per_epoch * epochs
        is_fit = call is not None
        call = call if is_fit else next(_loops)
        if is_fit and frame is not None and not steps_per_epoch:
            # All workers number the orders alike, wherever each begins. With
            # `steps_per_epoch` an order may last for several epochs.
            first = private_keras_calls.initial_epoch_of(frame)
        if config.num_workers == 1 or reads_once:
            first = 0
        size = _size(adapter, *((1, 0) if is_whole else _shares(config)))
        shared = _share_out(
            dataset, config, adapter, call, first, steps_per_epoch, compare
        )
        if is_fit and reads_once and config.num_workers > 1:
            # Epochs of the calls before may have been more on other workers.
            shared = fresh_pipelines.begun_again(shared, call, in_order=True)
        number, _ = _shares(config)
        if is_fit and adapter is not None:
            epochs, batches_out = begin(
                size,
                not steps_per_epoch
                and not private_keras_data.adapts_generator(adapter),
            )
            lasts = 1
            if steps_per_epoch:
                lasts = _epochs_of_order(frame, size, steps_per_epoch)
            orders = _orders(epochs, lasts)
            py_datasets.leave_out(adapter, epochs, orders)
            left_out = max(0, first + orders), batches_out
            if config.num_workers > 1 and not reads_once:
                passed = _Passed(adapter, frame, first, epochs, lasts)
    if adapter is None:
        return shared
    model = private_keras_calls.model_of(frame)
    batches.check(dataset, model)
    readers = py_datasets.Readers(adapter, steps_per_epoch, number)
    is_generator = private_keras_data.adapts_generator(adapter)
    return epoch_data.EpochData(
        shared,
        dataset,
        model,
        readers,
        left_out,
        make_epoch,
        passed,
        num_steps,
        # What still prefetches from a generator reads it with the next one.
        iter if is_generator else iterators.iterate,
    )


class _Passed:
    """The number of the order with which a call of `fit` goes on.

    Args:
      adapter: The Keras `DataAdapter`.
      frame: Of `fit`.
      order: Number of the order with which the call begins.
      known: Number of epochs left out that was known when it asked for data.
      lasts: For how many epochs an order lasts.
    """

    def __init__(self, adapter, frame, order, known, lasts):
        self._adapter, self._order, self._lasts = adapter, order, lasts
        self._model = private_keras_calls.model_of(frame)
        self._first = private_keras_calls.initial_epoch_of(frame)
        self._known = known

    def __call__(self):
        epoch = private_keras.epoch_set_on(self._model)
        if epoch is None or private_keras_data.adapts_generator(self._adapter):
            return self._order + _orders(self._known, self._lasts)
        passed = max(self._known, epoch - self._first)
        orders = _orders(passed, self._lasts)
        py_datasets.leave_out(self._adapter, passed, orders, self._known)
        self._known = passed
        return self._order + orders


def _shares(config):
    """The number of shares, and this worker's; that of a `ClusterConfig`."""
    return (1, 0) if config.num_workers == 1 else config.data_share


def _share_out(
    dataset, config, adapter, call, first_epoch, steps_per_epoch, compare
):
    """This worker's share of a data set.

    Args:
      dataset: A `tf.data.Dataset`.
      config: The `ClusterConfig`.
      adapter: The Keras `DataAdapter` that has made it; None if none has.
      call: Order number of the data, see `distribute`; outside of `fit` that of
        the loop.
      first_epoch: Number of the first epoch, from 0, as Keras counts.
      steps_per_epoch: The most steps of an epoch of `fit`, or None.
      compare: See `distribute`.

    Returns:
      A `tf.data.Dataset`.
    """
    number, mine = _shares(config)
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == _AutoShardPolicy.OFF:
        return dataset
    # Where there are more places, all are seeded alike.
    if config.num_workers == 1:
        return dataset
    if private_keras_data.adapts_generator(adapter):
        return generators.share(dataset, adapter, number, mine)
    if private_keras_data.adapts_py_dataset(adapter):
        compare(lambda: py_datasets.checksum(adapter), is_seed=False)
        dataset = py_datasets.in_agreed_order(
            dataset,
            adapter,
            call,
            first_epoch,
            reads_alone=bool(steps_per_epoch),
        )
    if policy == _AutoShardPolicy.HINT:
        dataset = fresh_pipelines.begun_again(dataset, call, in_order=True)
        shared = _auto_shard(dataset, policy, number, mine)
        return _with_policy(shared, _AutoShardPolicy.OFF)
    if policy == _AutoShardPolicy.AUTO:
        by_file = not private_pipelines.is_cached(dataset)
        by_file = by_file and not private_pipelines.stage_not_by_file(dataset)
        by_file = by_file and _has_enough_files(dataset, number)
    else:
        by_file = policy == _AutoShardPolicy.FILE
        if by_file:
            _check_counts_nothing(dataset)
        if by_file and not _has_enough_files(dataset, number):
            raise ValueError(
                "Argument `dataset` must read a file for each worker of the "
                "cluster with `AutoShardPolicy.FILE`: use "
                "`AutoShardPolicy.DATA`, or start fewer workers. Received: "
                f"fewer files than {number} workers"
            )
    make = arrays.maker(dataset, adapter, call)
    if make is not None:
        compare(lambda: arrays.seed(call), is_seed=True)
    else:
        dataset = fresh_pipelines.begun_again(
            dataset, call, in_order=not by_file
        )
    if by_file:
        shared = _auto_shard(dataset, _AutoShardPolicy.FILE, number, mine)
        return _with_policy(shared, _AutoShardPolicy.OFF)
    shared = make(number, mine) if make else dataset.shard(number, mine)
    cardinality = int(dataset.cardinality())
    count = cardinality if adapter is None else adapter.num_batches
    if count is not None and 0 <= count < number:
        raise ValueError(
            "Argument `dataset` must have a batch (an element) for each "
            "worker of the cluster: make the batches smaller, or start fewer "
            f"workers. Received: {count} for {number} workers"
        )
    if cardinality >= 0:
        size = cardinality // number + (mine < cardinality % number)
        shared = shared.apply(tf.data.experimental.assert_cardinality(size))
    if adapter is not None and count and steps_per_epoch:
        private_keras_data.set_num_batches(
            adapter, _size(adapter, number, mine)
        )
    return _with_policy(shared, _AutoShardPolicy.OFF)


def _size(adapter, number, mine):
    """Batches of a share of the data in an epoch; 0 where it is not known."""
    batches = 0 if adapter is None else adapter.num_batches or 0
    return batches // number + (mine < batches % number)


def _orders(epochs, lasts):
    """The number of orders of epochs that are left out.

    Args:
      epochs: Their number; less than 0 of those before the first one.
      lasts: See `_epochs_of_order`.
    """
    return epochs if lasts == 1 else max(0, int(epochs // lasts))


def _epochs_of_order(frame, size, steps):
    """The epochs for which an order of the data lasts with `steps_per_epoch`.

    Keras begins the data again after the epoch in which it has come to an end.

    Args:
      frame: Of `fit`.
      size: Batches of the share; 0 where that is not known.
      steps: The most steps of an epoch.

    Returns:
      An int, or infinity.
    """
    if not size:
        # One that is endless, or whose end Keras does not know beforehand.
        return math.inf
    executions = private_keras_calls.model_of(frame).steps_per_execution
    return math.ceil(size / (math.ceil(steps / executions) * executions))


def _check_counts_nothing(dataset):
    """Refuses `AutoShardPolicy.FILE` where it would change the data.

    Args:
      dataset: A `tf.data.Dataset`.

    Raises:
      ValueError: It has a stage that counts or pairs elements, which would do
        so with those of each worker's files.
    """
    stage = private_pipelines.stage_not_by_file(dataset)
    if stage in private_pipelines.COUNTING_OR_PAIRING:
        raise ValueError(
            "Argument `dataset` must not count or pair what it reads from "
            "files with `AutoShardPolicy.FILE`, where each worker would do so "
            "within its own files: use `AutoShardPolicy.DATA`, or count names "
            "of files. Received: a data set with "
            f"`{private_pipelines.COUNTING_OR_PAIRING[stage]}`"
        )


def _check_made_after_strategy(dataset):
    """Refuses a data set that was made before the strategy.

    The strategy connects this process to the cluster, where its devices have
    other names. TensorFlow finds the data set on one that is no more, and
    says "unknown device".

    Args:
      dataset: A `tf.data.Dataset`.
    """
    here = _process_of(tf.data.Dataset.range(1))
    process = _process_of(dataset)
    # In a graph it may be on none.
    if process and here and process != here:
        raise ValueError(
            "Argument `dataset` must be made after the strategy, which "
            "connects this process to the cluster: move `strategy = ...` to "
            "the beginning of the program, before the first data set. "
            f"Received: a data set of {process}, in the process {here}"
        )


def _process_of(dataset):
    """The job and task of the device of a `tf.data.Dataset`, if it has one."""
    variant = tf.data.experimental.to_variant(dataset)
    return variant.device.rpartition("/device:")[0]


def _with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    # TensorFlow warns of each change of an option.
    with quiet.quietly():
        return dataset.with_options(options)


def _auto_shard(dataset, policy, num_workers, index):
    return private_tensorflow.auto_shard_dataset(
        _with_policy(dataset, policy), num_workers, index
    )


def _reads_files(dataset):
    if private_pipelines.is_from_memory(dataset):
        return False
    if not private_pipelines.may_read_files(dataset):
        # TensorFlow would find none, and print the whole pipeline.
        return False
    try:
        # Nothing is looked for where there is one worker.
        _auto_shard(dataset, _AutoShardPolicy.FILE, 2, 0)
    except tf.errors.NotFoundError:
        return False
    return True


def _has_enough_files(dataset, num_workers):
    """Whether `dataset` can be shared out by files, one or more per worker.

    TensorFlow says so only when the first element is asked for, and only to
    some workers; so all of them ask for that of the first worker, and come
    to the same answer. Nothing is asked of data that is not from files, and
    nothing is done with what is read.
    """
    if not _reads_files(dataset):
        return False
    try:
        for reader in private_pipelines.readers_of(dataset):
            shared = _auto_shard(reader, _AutoShardPolicy.FILE, num_workers, 0)
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
    _check_made_after_strategy(dataset)
    return _with_policy(dataset, _AutoShardPolicy.OFF)
