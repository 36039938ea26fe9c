"""The data of `fit`, which each worker has as a whole."""

import itertools
import zlib

import keras
import tensorflow as tf

from tfdist import saved_state


def plain(batch):
    """Returns a batch with None where a data adapter has made an `Optional`."""
    return keras.tree.map_structure(
        lambda part: (
            None if isinstance(part, tf.experimental.Optional) else part
        ),
        batch,
    )


def portions(batches, most):
    """Returns consecutive parts of a list of batches, of nearly equal length.

    Args:
      batches: List of at least one.
      most: Number of parts; fewer where there are fewer batches.
    """
    number = min(most, len(batches))
    ends = [k * len(batches) // number for k in range(number + 1)]
    return [batches[a:b] for a, b in itertools.pairwise(ends)]


def checksum(batches):
    """Returns a number of all data, in its order; the same on all workers."""
    total = 0
    # Of sparse and ragged tensors the parts: their text has a few elements.
    for part in tf.nest.flatten(batches, expand_composites=True):
        if isinstance(part, tf.Tensor):
            total = zlib.crc32(tf.io.serialize_tensor(part).numpy(), total)
        elif part is not None:
            total = zlib.crc32(repr(part).encode(), total)
    return total


def compare(chiefs, own):
    """Refuses a worker that does not compute what the chief does.

    Args:
      chiefs: The chief's description.
      own: That of this worker.

    Raises:
      ModelMismatchError: The models, settings or frozen weights differ.
      ValueError: The data differs.
    """
    for key in ("variables", "settings"):
        if chiefs[key] != own[key]:
            raise saved_state.ModelMismatchError(
                f"The {key} of the model must be the same on all workers. "
                f"Received: {own[key]}, and on the chief {chiefs[key]}"
            )
    if chiefs["untrained"] != own["untrained"]:
        raise saved_state.ModelMismatchError(
            "Weights of frozen layers and other untrained state of the model "
            "must be the same on all workers: set or load them on all. "
            "Received: others than the chief's"
        )
    for key in ("batches", "data"):
        if chiefs[key] != own[key]:
            raise ValueError(
                "The data of `fit` must be the same on all workers, in the "
                "same order (`shuffle=False`): each computes any portion of "
                f"it. Received: other {key} than the chief's"
            )
