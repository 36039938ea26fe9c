"""Each worker's share of a Python generator."""

import itertools

import tensorflow as tf

from tfdist import private_pipelines


def share(dataset, adapter, number, mine):
    """The share of a generator that a worker takes in `fit`.

    Batch k, counted from the first that `fit` takes from the generator, goes
    to worker k mod N. A generator can be read once only, and the next `fit`
    goes on where this one has stopped: so it is read in rounds of N batches,
    and no round before it is trained on. Then generators that give all
    workers the same batches stay in step, whatever each has trained.

    Args:
      dataset: The `tf.data.Dataset` that Keras has made of the generator.
      adapter: The Keras `DataAdapter` that has made it.
      number: N, the number of shares.
      mine: Number of this worker's share.

    Returns:
      A `tf.data.Dataset`. When it is iterated over again, it goes on.
    """
    # Keras's adapter gives its first batches to each iterator once more.
    rest = _every_round(adapter.generator(), number, mine)
    adapter.generator = lambda: rest
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return private_pipelines.without_prefetch(dataset).with_options(options)


def _every_round(batches, number, mine):
    """Takes `number` batches at a time, and gives that of `mine`."""
    while True:
        taken = list(itertools.islice(batches, number))
        if mine < len(taken):
            yield taken[mine]
        if len(taken) < number:
            return
