"""What codecs take: milliseconds, and bytes.

    python benchmarks/compression.py [--quick]

Each codec encodes vectors whose elements have scales of their own, after some
messages that fill its residual, with its state in variables; and decodes a
message into a variable. The codecs take turns; what is shown is the median
over the rounds. `pays below` is the network's speed at which bytes / speed +
encode + decode are as long as for float32, for one message that is sent once.
"""

import time

from absl import flags
from harness import program
import numpy as np
import tensorflow as tf

from tfdist import tables
from tfdist.compression import base
from tfdist.compression import registry

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_multi_enum(
    "size", None, ["10k", "1M", "17M"], "Elements. Default: all."
)
flags.DEFINE_multi_string("codec", None, "Codecs. Default: a choice of all.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 25, or 5 if --quick.", lower_bound=1
)

SIZES = {"10k": 10_000, "1M": 1_000_000, "17M": 17_000_000}
CODECS = (
    "cast(dtype=bfloat16)",
    "cast(dtype=float16)",
    "int8",
    "int8(rounding=stochastic)",
    "threshold(density=0.2)",
    "threshold(density=0.004,entropy=false)",
    "threshold(density=0.004)",
    "threshold(density=0.0004)",
    "top_k(ratio=0.001)",
    "top_k(ratio=0.001,momentum=0.9)",
    "one_bit",
    "sign",
    "power_sgd(rank=4)",
)
WARM_UP = 12


def main():
    """Measures, prints a table and a line of JSON."""
    rounds = FLAGS.rounds or (5 if FLAGS.quick else 25)
    figures = {}
    for name in FLAGS.size or SIZES:
        figures[name] = measure(FLAGS.codec or CODECS, SIZES[name], rounds)
        show(name, figures[name])
    program.report("compression", sizes=figures)


class Link:
    """A codec with its state in variables, a vector, and a receiver.

    Args:
        text: of the codec.
        vectors: those that take turns, `[size]` each.
    """

    def __init__(self, text, vectors):
        size = vectors[0].shape[0]
        self._codec = registry.parse(text)
        self._vectors = vectors
        self._state = {
            name: tf.Variable(value)
            for name, value in self._codec.state(size).items()
        }
        self._variable = tf.Variable(tf.zeros([size]))
        self._encode = tf.function(self._build_encode, autograph=False)
        self._decode = tf.function(
            lambda *message: self._codec.decode_into(
                self._variable, base.Message(*message), -0.1
            ),
            input_signature=[
                tf.TensorSpec([], tf.int32),
                tf.TensorSpec([None], tf.float32),
                tf.TensorSpec([None], tf.uint8),
            ],
            autograph=False,
        )
        for _ in range(WARM_UP):
            self.turn()

    def _build_encode(self, vector):
        state = {name: one.read_value() for name, one in self._state.items()}
        message, state = self._codec.encode(vector, state)
        for name, value in state.items():
            self._state[name].assign(value)
        return message

    def turn(self):
        """Encodes and decodes one vector.

        Returns:
            Seconds of both, and bytes of the message.
        """
        self._vectors = [*self._vectors[1:], self._vectors[0]]
        begin = time.perf_counter()
        message = self._encode(self._vectors[0])
        middle = time.perf_counter()
        self._decode(*message)
        end = time.perf_counter()
        return middle - begin, end - middle, int(self._codec.bytes(message))


def measure(codecs, size, rounds):
    """Figures of codecs: text -> dict.

    Args:
        codecs: texts.
        size: elements.
        rounds: number of messages of each.
    """
    rng = np.random.default_rng(0)
    scales = np.exp(rng.standard_normal(size, np.float32))
    vectors = [
        tf.constant(rng.standard_normal(size, np.float32) * scales)
        for _ in range(2)
    ]
    # Whose sum is 0: residuals stay as large as they are after a few.
    vectors += [-vector for vector in vectors]
    links = {text: Link(text, vectors).turn for text in codecs}
    turns = program.take_turns(links, rounds)
    return {text: summarize(size, turns[text]) for text in codecs}


def summarize(size, turns):
    """The figures of one codec, a dict.

    Args:
        size: elements.
        turns: what `Link.turn` returned.
    """
    encode, decode, sent = (list(values) for values in zip(*turns, strict=True))
    mean = sum(sent) / len(sent)
    seconds = np.median(encode) + np.median(decode)
    return {
        "encode_ms": program.milliseconds(encode),
        "decode_ms": program.milliseconds(decode),
        "bytes": round(mean),
        "ratio": round(4 * size / mean, 1),
        "pays_below_gbps": round((4 * size - mean) * 8e-9 / seconds, 2),
    }


def show(size, figures):
    """Prints the table of one size."""
    rows = [
        [
            text,
            f"{row['encode_ms']:.2f}",
            f"{row['decode_ms']:.2f}",
            f"{row['bytes']:,}",
            f"{row['ratio']:.1f}",
            f"{row['pays_below_gbps']:.2f}",
        ]
        for text, row in figures.items()
    ]
    titles = [size, "encode", "decode", "bytes", "ratio", "pays below Gb/s"]
    print(tables.aligned(titles, rows))
    print()


if __name__ == "__main__":
    program.run(main)
