"""Workers that note which examples they have trained on."""

import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

EXAMPLES = 101
BATCH_SIZE = 8
EPOCHS = 2
# Lines of each file; three workers share four files.
FILE_SIZES = (1, 40, 60, 0)
# Batches of each worker, where they differ wildly.
UNEVEN = (1, 12, 4)


class Recorder(keras.layers.Layer):
    """Passes its input on; in training notes the ids in its first column."""

    def __init__(self, note):
        """Makes the layer.

        Args:
            note: is called with each batch's array of ids.
        """
        super().__init__()
        self._note = note

    def call(self, inputs, training=False):
        """Returns the input."""
        if training:
            tf.numpy_function(self._note, [inputs[:, 0]], [])
        return inputs


class _Numbers(keras.utils.PyDataset):
    """The examples as a `PyDataset`."""

    def __len__(self):
        return -(-EXAMPLES // BATCH_SIZE)

    def __getitem__(self, index):
        first = index * BATCH_SIZE
        ids = np.arange(first, min(first + BATCH_SIZE, EXAMPLES))
        return ids[:, None].astype(np.float32), np.zeros([len(ids), 1])


def _ids():
    return np.arange(EXAMPLES, dtype=np.float32)[:, None]


def _slices():
    return tf.data.Dataset.from_tensor_slices((_ids(), 0.0 * _ids()))


def _with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def _files(policy, sizes=FILE_SIZES):
    """Lines of files that every worker writes alike in a folder of its own."""
    names = []
    for number, size in enumerate(sizes):
        first = sum(sizes[:number])
        path = pathlib.Path(f"{sizes}-{number}-{tasks.label()}.txt")
        path.write_text("".join(f"{first + k}\n" for k in range(size)))
        names.append(str(path))

    def parse(line):
        number = tf.strings.to_number(line)[None]
        return number, 0.0 * number

    dataset = tf.data.TextLineDataset(names).map(parse).batch(BATCH_SIZE)
    return _with_policy(dataset, policy)


def _from_function(strategy, uneven=False):
    def build(context):
        index = context.input_pipeline_id
        if uneven:
            return _slices().batch(BATCH_SIZE).take(UNEVEN[index])
        return (
            _slices()
            .shard(context.num_input_pipelines, index)
            .batch(BATCH_SIZE)
        )

    return strategy.distribute_datasets_from_function(build)


_POLICY = tf.data.experimental.AutoShardPolicy
# How the data is made -> a function of the strategy.
KINDS = {
    "automatic": lambda _: _slices().batch(BATCH_SIZE),
    "data": lambda _: _with_policy(_slices().batch(BATCH_SIZE), _POLICY.DATA),
    "shuffled": lambda _: _slices().shuffle(EXAMPLES).batch(BATCH_SIZE),
    "cached": lambda _: (
        _slices().cache().shuffle(EXAMPLES).batch(BATCH_SIZE).prefetch(2)
    ),
    "file": lambda _: _files(_POLICY.FILE),
    "automatic file": lambda _: _files(_POLICY.AUTO),
    "two files": lambda _: _files(_POLICY.AUTO, (50, 51)),
    "numpy": lambda _: (_ids(), 0.0 * _ids()),
    "py_dataset": lambda _: _Numbers(),
    "from_function": lambda strategy: _from_function(strategy),
    "off": lambda _: _with_policy(_slices().batch(BATCH_SIZE), _POLICY.OFF),
    "uneven": lambda strategy: _from_function(strategy, uneven=True),
}


def run(steps, constant):
    """Trains on all kinds of data, and then another model; reports both.

    Args:
        steps: of `train_and_evaluate`.
        constant: of `train_and_evaluate`.
    """
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    found = train_on_each_kind(strategy)
    evaluated = train_and_evaluate(strategy, steps, constant)
    handshake.report(evaluated=evaluated, **found)


def train_on_each_kind(strategy):
    """Trains on all kinds of data; returns the ids of each epoch."""
    seen = []

    def note(ids):
        seen.extend(int(i) for i in ids)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([1]), Recorder(note), keras.layers.Dense(1)]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    result, losses = {}, {}
    for name, make in KINDS.items():
        epochs = result[name] = []

        def end_epoch(epoch, logs, epochs=epochs):
            del epoch, logs
            epochs.append(seen.copy())
            seen.clear()

        data = make(strategy)
        x, y = data if isinstance(data, tuple) else (data, None)
        fitted = model.fit(
            x,
            y,
            epochs=EPOCHS,
            batch_size=BATCH_SIZE if y is not None else None,
            validation_data=(_ids(), 0.0 * _ids()),
            verbose=0,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)],
        )
        losses[name] = fitted.history["val_loss"]
    strategy.barrier()
    # At a rate of zero they have been these all along.
    kernel, bias = (float(w.ravel()[0]) for w in model.get_weights())
    validation = {"losses": losses, "kernel": kernel, "bias": bias}
    return {"seen": result, "validation": validation}


class _OneBatch(_Numbers):
    """A `PyDataset` of one batch."""

    def __len__(self):
        return 1


def train_on_one_batch():
    """Trains on data that has a share for the first worker alone."""
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    model = tasks.build_sum_of_weights(strategy)
    messages = []
    for data in (
        {"x": _ids(), "y": _ids(), "batch_size": EXAMPLES},
        {"x": _OneBatch()},
        {"x": _files(_POLICY.FILE, (EXAMPLES,))},
        {"x": _with_policy(_slices().batch(BATCH_SIZE), _POLICY.FILE)},
    ):
        try:
            model.fit(**data, verbose=0)
        except ValueError as error:
            messages.append(str(error))
    handshake.report(messages=messages, updates=strategy.updates_applied())
    model.fit(_slices().batch(EXAMPLES), verbose=0)


def train_and_evaluate(strategy, steps, constant):
    """Trains a model with BatchNormalization; returns what it evaluates to.

    Args:
        strategy: that trains.
        steps: to take.
        constant: each value of the input of BatchNormalization.
    """
    with strategy.scope():
        normalization = keras.layers.BatchNormalization(momentum=0.75)
        model = keras.Sequential(
            [
                keras.Input([4]),
                normalization,
                keras.layers.Dense(16, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse", metrics=["mae"])
    generator = np.random.default_rng(strategy.cluster.worker_id)
    x = np.full([16, 4], constant, np.float32)
    # The second column varies, and differs between workers.
    x[:, 1] = generator.normal(size=16)
    y = generator.normal(size=[16, 1]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(
        _with_policy(dataset, _POLICY.OFF), steps_per_epoch=steps, verbose=0
    )
    strategy.barrier()
    same = np.random.default_rng(0)
    x = same.normal(size=[50, 4]).astype(np.float32)
    results = model.evaluate(x, x[:, :1], batch_size=16, verbose=0)
    predicted = model.predict(x, verbose=0)
    return {
        "results": results,
        "predicted": predicted.ravel().tolist(),
        "moving_mean": normalization.moving_mean.numpy().tolist(),
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }
