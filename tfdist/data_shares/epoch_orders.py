"""Orders of epochs: the seed that they are drawn by, and their iterators."""

import itertools

from absl import logging
import tensorflow as tf

from tfdist.data_shares import iterators


def seed_of(call):
    """Returns the seed of the orders of a call's epochs, a string.

    It is the same on all workers where they have set the same seed.

    Args:
      call: Order number of the data, see `shares.distribute`.
    """
    # The process's seed, without a draw from it.
    return f"{tf.compat.v1.get_seed(1)[0]} {call}"


class EpochIterators:
    """Iterators of a data set, one for each epoch.

    A shuffle draws the order of an epoch with its iterator. So the epochs that
    are passed over have iterators as well. A shuffle below a cache draws one
    order, which the cache keeps once an iterator has read it to its end: that
    of the first iterator, also where another shuffle above draws more.

    Args:
      dataset: The `tf.data.Dataset`.
      fills_cache: Whether the first epoch is read if it is passed over, so
        that a cache keeps its order.
      most: Number of batches that are read of it at most; None to read to its
        end.
      iterate: Callable that makes an iterator of a data set.

    Attributes:
      drawn: Number of the epochs that have had their iterator, an int.
    """

    def __init__(
        self,
        dataset,
        fills_cache=False,
        most=None,
        iterate=iterators.iterate,
    ):
        self._dataset = dataset
        self._iterate = iterate
        self._fills_cache = fills_cache
        self._most = most
        self.drawn = 0

    def next(self, first=0, left_out=0):
        """Returns an iterator of the next epoch.

        Args:
          first: Number of the first epoch, from 0, that is not passed over.
          left_out: Number of batches that the epoch begins without.
        """
        while self.drawn < first:
            passed = self._iterate(self._dataset)
            if self._fills_cache and not self.drawn:
                _read(itertools.islice(passed, self._most))
            self.drawn += 1
        self.drawn += 1
        data = self._dataset.skip(left_out) if left_out else self._dataset
        return self._iterate(data)


def _read(batches):
    """Reads all batches of an iterator; the log says so every 10 seconds."""
    for number, _ in enumerate(batches, 1):
        logging.log_every_n_seconds(
            logging.INFO,
            "Reads an epoch that this worker leaves out, so that `cache` keeps "
            "the order that it has on other workers. Batches so far: %d.",
            10,
            number,
        )
