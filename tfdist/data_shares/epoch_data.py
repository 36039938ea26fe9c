"""Data as Keras iterates over it: once for each epoch, and not to build."""

import itertools

import keras
import tensorflow as tf

from tfdist import private_keras_calls
from tfdist import private_pipelines
from tfdist.data_shares import epoch_orders
from tfdist.data_shares import iterators


class EpochData:
    """A data set of which `fit`, `evaluate` and `predict` lose nothing.

    Under a strategy Keras begins each of them by taking a batch from an
    iterator that it then throws away, to build the model for such batches.
    What that takes from a Python generator is lost, and differs from worker
    to worker by what has been prefetched; of other data it costs the first
    batch. Here the model is built for what the data set says of its elements,
    for a batch of a `PyDataset`, or for an element that the first epoch gets,
    too.

    Args:
      dataset: The `tf.data.Dataset` of this worker.
      source: That of all workers, for elements where this one has none.
      model: The `keras.Model` that asks.
      readers: The `Readers` of the data.
      left_out: Number of the first epoch, and of the batches that it begins
        without, a tuple of ints. The orders of the epochs before are passed
        over, so that all workers have the same.
      make_epoch: Callable that makes what Keras iterates over in an epoch;
        None for iterators of `dataset`.
      passed: Callable of the number of the first epoch when `fit` begins: a
        callback may have made it a later one.
      num_steps: Number of batches that the call reads at most, where it is
        known; else None, and each epoch has an end.
      iterate: Callable that makes an iterator of a data set.
    """

    def __init__(
        self,
        dataset,
        source,
        model,
        readers,
        left_out,
        make_epoch,
        passed,
        num_steps=None,
        iterate=iterators.iterate,
    ):
        self._iterate = iterate
        self._dataset = dataset
        self._source = source
        self._readers = readers
        self._is_built = model.built
        # The iterator of the first epoch, where an element of it is known.
        self._begun = None
        self._left_out = left_out
        self._make_epoch = make_epoch
        self._passed = passed
        is_cached = private_pipelines.caches_a_shuffle(source)
        # A cache keeps the order of the first iterator.
        self._has_one_order = (
            is_cached and not private_pipelines.shuffles_beyond_caches(source)
        )
        cardinality = dataset.cardinality()
        is_unknown = cardinality == tf.data.UNKNOWN_CARDINALITY
        self._has_spares = is_unknown and num_steps is None
        # The epoch of `fit` that was begun last, and its iterator.
        self._epoch = self._last = None
        self._iterators = epoch_orders.EpochIterators(
            dataset,
            is_cached and cardinality != tf.data.INFINITE_CARDINALITY,
            # It may be endless. A cache that so many batches do not fill is
            # filled on no worker.
            num_steps if is_unknown else None,
            iterate,
        )

    def __iter__(self):
        if private_keras_calls.is_building_model():
            return iter([self._batch_to_build_for()])
        if self._make_epoch is not None:
            return self._make_epoch()
        if self._is_spare():
            return self._last
        begun, self._begun = self._begun, None
        if not self._iterators.drawn or begun is not None:
            passed = self._passed()
            if passed > self._left_out[0]:
                self._left_out = passed, 0
                begun = None
        self._readers.begin()
        self._last = self._next_epoch() if begun is None else begun
        return self._last

    def _is_spare(self):
        """Whether Keras asks for an iterator that it will not read.

        It does where an epoch has more batches than the first one had, which
        it took for the size of all: this worker's may have, and others' not.
        Then their orders would be of different epochs from there on.
        """
        if not self._has_spares:
            return False
        begun, self._epoch = self._epoch, private_keras_calls.keras_epoch()
        return self._epoch is not None and self._epoch == begun

    def _next_epoch(self):
        """An iterator of the next epoch's data."""
        epochs, batches = self._left_out
        self._left_out = epochs, 0
        first = 0 if self._has_one_order else epochs
        return self._iterators.next(first, batches)

    def _batch_to_build_for(self):
        spec = self._dataset.element_spec
        if all(map(self._says_enough, keras.tree.flatten(spec))):
            return keras.tree.map_structure(_without_optional, spec)
        batch = self._readers.batch_to_build_for(spec)
        if batch is not None:
            return keras.tree.map_structure(_without_optional, batch)
        self._readers.begin()
        iterator = self._next_epoch()
        first = next(iterator, None)
        if first is not None:
            chained = tf.data.Dataset.from_generator(
                lambda: itertools.chain([first], iterator),
                output_signature=spec,
            )
            self._begun = self._iterate(
                chained.with_options(self._dataset.options())
            )
            return keras.tree.map_structure(_without_optional, first)
        first = next(iter(self._source), None)
        if first is None:
            raise ValueError(
                "Argument `dataset` must have an element, or an "
                "`element_spec` that says for which shapes the model is to be "
                f"built. Received: no element, element_spec={spec}"
            )
        return keras.tree.map_structure(_without_optional, first)

    def _says_enough(self, spec):
        """Whether a model can be built for the `TypeSpec` of a tensor."""
        if not hasattr(spec, "shape"):
            return True  # None.
        if spec.shape.rank is None:
            return False
        # No element says more of how long its rows are.
        is_ragged = isinstance(spec, tf.RaggedTensorSpec)
        return self._is_built or is_ragged or None not in spec.shape[1:]


def _without_optional(part):
    """A tensor or its spec, or None, of which adapters make an `Optional`."""
    return part if hasattr(part, "shape") else None
