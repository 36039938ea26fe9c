"""The examples of a simulated run, and which worker takes which."""

import contextlib
import numbers

import keras
import numpy as np
import tensorflow as tf

from tfdist import model_optimizers
from tfdist.sandblaster import lbfgs

_BATCH_OF_VALIDATION = 1024
_MOST_ORDERS = 8


class Data:
    """Examples in memory, and the order in which they are taken.

    Args:
      dataset: A pair of arrays `(x, y)` or a triple `(x, y, sample_weight)`
        with as many rows each, or a finite `tf.data.Dataset` of such examples
        (not of batches).
      batch_size: Examples per gradient; an epoch's last batch may be smaller.
      shuffle: Whether each epoch has an order of its own.
      seed: Of that.
      name: Of the argument, for messages.

    Raises:
      ValueError: There is nothing in it, or it has no such form.
    """

    def __init__(
        self, dataset, batch_size, *, shuffle=True, seed=0, name="dataset"
    ):
        if isinstance(dataset, tf.data.Dataset):
            dataset = _in_memory(dataset)
        if not isinstance(dataset, (tuple, list)) or len(dataset) not in (2, 3):
            raise ValueError(
                f"Argument `{name}` must be (x, y), (x, y, sample_weight) or "
                "a tf.data.Dataset of such examples. Received: "
                f"{name}={type(dataset).__name__}"
            )
        arrays = [np.asarray(array) for array in dataset]
        sizes = [array.shape[0] if array.ndim else 0 for array in arrays]
        if not sizes[0] or len(set(sizes)) > 1:
            raise ValueError(
                f"{name} must have as many labels (and weights) as examples, "
                "one at least, each in one array. Received arrays of "
                f"{sizes} rows."
            )
        if isinstance(batch_size, bool) or not (
            isinstance(batch_size, numbers.Integral)
            and 1 <= batch_size <= sizes[0]
        ):
            raise ValueError(
                "Argument `batch_size` must be an integer from 1 to the "
                f"number of examples, {sizes[0]}. Received: "
                f"batch_size={batch_size!r}"
            )
        self._tensors = [tf.constant(array) for array in arrays]
        self._shuffle = shuffle
        self._seed = seed
        self._orders = {}
        self.batch_size = int(batch_size)
        self.num_examples = sizes[0]
        self.num_batches = -(-sizes[0] // batch_size)

    def rows(self, batch):
        """Examples of a batch.

        Args:
          batch: Its number, counted over all epochs.

        Returns:
          Int64 vector of row numbers.
        """
        epoch, number = divmod(batch, self.num_batches)
        if epoch not in self._orders:
            order = np.arange(self.num_examples)
            if self._shuffle:
                np.random.default_rng([self._seed, epoch]).shuffle(order)
            # Workers may be some epochs apart; an order that is wanted again
            # is made again.
            if len(self._orders) >= _MOST_ORDERS:
                del self._orders[min(self._orders)]
            self._orders[epoch] = order
        begin = number * self.batch_size
        return self._orders[epoch][begin : begin + self.batch_size]

    def size(self, batch):
        """Number of examples in a batch."""
        begin = batch % self.num_batches * self.batch_size
        return min(self.batch_size, self.num_examples - begin)

    def is_full(self, batch):
        """Whether a batch is not the short one at the end of an epoch."""
        return self.size(batch) == self.batch_size

    def take(self, rows):
        """The examples `rows`: x, y and weights (or None), as tensors."""
        taken = [tf.gather(tensor, rows) for tensor in self._tensors]
        return (*taken, None)[:3]

    @property
    def arrays(self):
        """All of it, a tuple of NumPy arrays."""
        return tuple(tensor.numpy() for tensor in self._tensors)


class Shares:
    """Batches that each worker computes.

    Args:
      num_batches: Of one epoch.
      epochs: Number of epochs.
      num_workers: Number of workers.
      dynamic: False: a worker has every `num_workers`-th batch of an epoch,
        as `fit` on a cluster has it, and stops when these are done. True:
        each takes the next one that nobody has taken.

    Attributes:
      goes_to_others: Whether others compute what a worker that dies has left,
        and not its next process.
    """

    goes_to_others = False

    def __init__(self, num_batches, epochs, num_workers, dynamic=False):
        def share(worker):
            for epoch in range(epochs):
                first, end = epoch * num_batches, (epoch + 1) * num_batches
                yield from range(first + worker, end, num_workers)

        if dynamic:
            self._own = [iter(range(num_batches * epochs))] * num_workers
        else:
            self._own = [share(worker) for worker in range(num_workers)]

    def next(self, worker, lost=()):
        """The next batch of a worker, None if there is none."""
        return next(self._own[worker], None)

    def arrived(self, batch):
        """Does nothing."""

    def died(self, worker):
        """Does nothing."""

    def has_changed(self):
        """Nobody waits for a batch."""
        return False


def _in_memory(dataset):
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "Argument `dataset` must be finite: the simulator counts epochs; "
            "leave out its repeat(). Received: a tf.data.Dataset without end"
        )
    examples = list(dataset.as_numpy_iterator())
    if not examples or not isinstance(examples[0], tuple):
        raise ValueError(
            "Argument `dataset` must have examples (x, y). Received: a "
            f"tf.data.Dataset with elements {dataset.element_spec}"
        )
    return tuple(np.stack(column) for column in zip(*examples, strict=True))


def of_validation(dataset):
    """`Data` to be evaluated on."""
    data = Data(dataset, 1, shuffle=False, name="validation_data")
    data.batch_size = min(_BATCH_OF_VALIDATION, data.num_examples)
    return data


def evaluate(model, validation):
    """The model's loss and metrics, a dict.

    Args:
      model: A compiled `keras.Model`.
      validation: A `Data`.
    """
    x, y, *weights = validation.arrays
    return model.evaluate(
        x,
        y,
        batch_size=validation.batch_size,
        sample_weight=weights[0] if weights else None,
        verbose=0,
        return_dict=True,
    )


@contextlib.contextmanager
def refused_as_model():
    """Scope in which what real workers refuse is an error of `model_fn`.

    Raises:
      ValueError: With their reason.
    """
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(
            "Argument `model_fn` must return a model that the strategy "
            f"takes. {error}"
        ) from error


def check_takes_steps(model):
    """Refuses an optimizer that has no step of one batch.

    Raises:
      ValueError: It is `LBFGS`.
    """
    if isinstance(model.optimizer, lbfgs.LBFGS):
        raise ValueError(
            "LBFGS has no step of one batch: use the method sandblaster, or "
            "another optimizer."
        )


def check_model(
    model, averages=False, takes_local_steps=False, may_apply_several=False
):
    """Refuses what the simulator cannot train, or servers would not.

    Args:
      model: What `model_fn` returned.
      averages: Whether updates are made of several gradients.
      takes_local_steps: Whether workers have weights of their own.
      may_apply_several: Whether servers may apply several updates at once.

    Raises:
      TypeError: It is no Keras model.
      ValueError: With the reason.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "Argument `model_fn` must return a compiled keras.Model. "
            f"Received: model_fn() returned {model!r}"
        )
    optimizer = getattr(model, "optimizer", None)
    if not getattr(model, "compiled", False) or optimizer is None:
        raise ValueError(
            "Argument `model_fn` must return a compiled model: call "
            "model.compile with an optimizer and a loss. Received: "
            f"{model!r}, not compiled"
        )
    if not model.built or not model.trainable_variables:
        raise ValueError(
            "Argument `model_fn` must return a model with weights: begin it "
            f"with keras.Input, or call build. Received: {model!r} without"
        )
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which the "
            "simulator cannot split into gradients and updates: override "
            "compute_loss instead."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError("Loss scaling is not simulated: use float32.")
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "gradient_accumulation_steps is not simulated: use a larger "
            "batch_size."
        )
    if takes_local_steps:
        if optimizer.use_ema:
            raise ValueError(
                "use_ema=True keeps an average of each worker's own weights, "
                "which differ between workers with local steps. Leave it out."
            )
        return
    uses_ema = model_optimizers.averages_weights(model)
    constrained = [
        v.path for v in model.trainable_variables if v.constraint is not None
    ]
    # One that has others for some variables each, a `MultiOptimizer`.
    has_parts = hasattr(optimizer, "optimizers")
    if averages and (uses_ema or constrained or has_parts):
        what, others = "use_ema", "async"
        if not uses_ema:
            others = "async or bounded_staleness"
            what = f"constraints of {constrained}"
            if not constrained:
                what = f"a {type(optimizer).__name__}"
        raise ValueError(
            f"Methods whose updates are means of gradients refuse {what}: "
            "every worker would change the variables for each update of all "
            f"of them. Use {others}, or leave it out."
        )
    if may_apply_several and uses_ema:
        raise ValueError(
            "Methods that may apply several updates at once (all with servers "
            "but async without a correction on them) refuse use_ema, which "
            "has to see the weights after each. Use async, or leave it out."
        )
