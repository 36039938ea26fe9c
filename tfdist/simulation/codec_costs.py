"""Costs of compression on this machine, and the network on which it pays."""

import dataclasses
import math
import time

import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist import compression as compression_lib
from tfdist import tables
from tfdist.compression import base
from tfdist.simulation.compiled import Compiled

CODEC = "threshold(density=0.004)"
"""The codec that is measured where none is given."""

# Calls that trace, and fill the residual.
_WARM_UP = 5


@dataclasses.dataclass(frozen=True)
class CodecCost:
    """Time and bytes of one encoded update.

    Attributes:
      codec: Its text.
      dense_bytes: Of the update as it is.
      num_bytes: Of the message.
      seconds: To encode and to decode it once, on a machine that does nothing
        else.
    """

    codec: str
    dense_bytes: int
    num_bytes: int
    seconds: float

    @property
    def pays_below_gbps(self) -> float:
        """Bandwidth at which sending it dense takes as long, Gb/s."""
        return (self.dense_bytes - self.num_bytes) * 8e-9 / self.seconds

    def sentence(self, gbps: float) -> str:
        """Says whether compression would pay.

        Args:
          gbps: Of a worker's link; infinite: no limit.
        """
        if self.num_bytes >= self.dense_bytes:
            return (
                f"Compression: {self.codec} makes {self.num_bytes} bytes of "
                f"{self.dense_bytes}: for so few parameters it would not pay."
            )
        text = (
            f"Compression: {self.codec} makes {tables.amount(self.num_bytes)} "
            f"bytes of {tables.amount(self.dense_bytes)} and takes "
            f"{1e3 * self.seconds:.3g} ms on this machine, so a message "
            "arrives sooner on networks below "
            f"{tables.amount(self.pays_below_gbps)} Gb/s. "
        )
        if not math.isfinite(gbps):
            return text + "Here the network has no limit: it would not pay."
        saved = 8e-9 * (self.dense_bytes - self.num_bytes) / gbps
        saved -= self.seconds
        if saved <= 0:
            return text + f"At {gbps:g} Gb/s it would not pay."
        return text + (
            f"At {gbps:g} Gb/s it would save {1e3 * saved:.3g} ms per message "
            "with peer_to_peer, the only method that sends compressed updates."
        )


def measure(size: int, codec: str = CODEC, rounds: int = 15) -> CodecCost:
    """Measures a codec on this machine, on random vectors.

    Args:
      size: Elements of the vector.
      codec: A text that names it.
      rounds: Messages; the fastest one counts.

    Returns:
      A `CodecCost`.
    """
    size = checks.count("size", size)
    rounds = checks.count("rounds", rounds)
    made = compression_lib.parse(codec)
    state = {k: tf.Variable(v) for k, v in made.state(size).items()}
    target = tf.Variable(tf.zeros([size]))

    @Compiled
    def encode(vector):
        now = {name: one.read_value() for name, one in state.items()}
        message, new = made.encode(vector, now)
        for name, value in new.items():
            state[name].assign(value)
        return message

    @Compiled
    def decode(kind, values, data):
        made.decode_into(target, base.Message(kind, values, data))

    stream = np.random.default_rng(0)
    # Elements differ in scale, as those of gradients do.
    vector = stream.standard_normal(size, np.float32)
    vector *= np.exp(stream.standard_normal(size, np.float32))
    # Whose sum is 0: the residual stays as large as it is.
    vectors = [tf.constant(sign * vector) for sign in (1, -1)]
    seconds, sizes = [], []
    for number in range(_WARM_UP + rounds):
        begin = time.perf_counter()
        message = encode(vectors[number % 2])
        decode(*message)
        seconds.append(time.perf_counter() - begin)
        sizes.append(sum(tensor.numpy().nbytes for tensor in message))
    return CodecCost(
        codec=codec,
        dense_bytes=vector.nbytes,
        num_bytes=int(np.median(sizes[_WARM_UP:])),
        seconds=min(seconds[_WARM_UP:]),
    )
