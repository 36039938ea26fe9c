"""Small embedded tasks, to train where the user names none.

Each is deterministic, needs no network, and has one way to be harder or
easier than the others: `digits` is easy and real, `text` is hard and real,
`teacher` is made and can be set.
"""

from collections.abc import Callable
import dataclasses
import functools
import pydoc_data.topics
import unicodedata

import keras
import numpy as np

from tfdist import checks
from tfdist import datasets


@dataclasses.dataclass(frozen=True)
class BuiltInTask:
    """A model and its data.

    Attributes:
      name: Of the task.
      build: Callable of `learning_rate` and `momentum` that returns a
        compiled `keras.Model` with SGD and the metric `accuracy`.
      train: Training examples, `(x, y)`.
      validation: Others, `(x, y)`.
      learning_rate: One that suits one worker without momentum.
      batch_size: Examples per gradient.
    """

    name: str
    build: Callable
    train: tuple
    validation: tuple
    learning_rate: float
    batch_size: int

    def model_fn(self, learning_rate=None, momentum=0.0):
        """Returns a `model_fn` for `simulate`."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return lambda: self.build(rate, momentum)


@functools.cache
def load(name):
    """The task of that name, one of `TASKS`; made once in a process.

    Raises:
      ValueError: There is none.
    """
    checks.one_of("name", name, TASKS)
    return TASKS[name]()


def digits():
    """Handwritten digits, 8 x 8 pixels; a convolutional network."""
    splits = []
    for split in datasets.load("digits", split=["train", "test"]):
        images, labels = zip(*split.as_numpy_iterator(), strict=True)
        scale = np.float32(datasets.MAX_PIXEL["digits"])
        splits.append((np.stack(images) / scale, np.array(labels)))
    layers = keras.layers

    def build(learning_rate, momentum=0.0):
        return _compiled(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(32, 3, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dense(10),
            ],
            learning_rate,
            momentum,
        )

    return BuiltInTask(
        "digits", build, *splits, learning_rate=0.1, batch_size=16
    )


_CONTEXT = 10
_CHARACTERS = " abcdefghijklmnopqrstuvwxyz0123456789.,:;()[]\"'`*=_-+/<>{}#@\n"


def text(num_examples=20_000, num_validation=4_000):
    """The next character of Python's own documentation.

    From the ten characters before; the text is that of the module
    `pydoc_data.topics`, so it differs a little between versions of Python.

    Args:
      num_examples: For training.
      num_validation: Others, from later in the text.
    """
    topics = pydoc_data.topics.topics
    whole = "\n".join(topics[name] for name in sorted(topics)).lower()
    whole = unicodedata.normalize("NFKD", whole)
    numbers = {character: k for k, character in enumerate(_CHARACTERS)}
    codes = np.array([numbers[c] for c in whole if c in numbers], "int32")
    windows = np.lib.stride_tricks.sliding_window_view(codes, _CONTEXT + 1)
    begin = int(0.8 * len(windows))
    stream = np.random.default_rng(0)
    train = windows[stream.choice(begin, num_examples, replace=False)]
    # Apart by more than a window: nothing is in both.
    rest = np.arange(begin + _CONTEXT + 1, len(windows))
    validation = windows[stream.choice(rest, num_validation, replace=False)]
    layers = keras.layers

    def build(learning_rate, momentum=0.0):
        return _compiled(
            [
                keras.Input((_CONTEXT,), dtype="int32"),
                layers.Embedding(len(_CHARACTERS), 8),
                layers.Flatten(),
                layers.Dense(96, activation="tanh"),
                layers.Dense(len(_CHARACTERS)),
            ],
            learning_rate,
            momentum,
        )

    return BuiltInTask(
        "text",
        build,
        (train[:, :-1], train[:, -1]),
        (validation[:, :-1], validation[:, -1]),
        learning_rate=0.5,
        batch_size=32,
    )


def teacher(
    num_examples=16_000,
    num_validation=4_000,
    *,
    width=24,
    sharpness=6.0,
    seed=0,
):
    """Returns a task: a fixed random network's classes of random inputs.

    Args:
      num_examples: For training.
      num_validation: Others.
      width: Number of inputs, and of the teacher's hidden units.
      sharpness: Of its classes: labels are drawn from the softmax of its
        outputs times this, so that less is noisier.
      seed: Of all that.
    """
    stream = np.random.default_rng(seed)
    classes = 10
    first = stream.standard_normal((width, width)) / np.sqrt(width)
    second = stream.standard_normal((width, classes)) / np.sqrt(width)
    number = num_examples + num_validation
    x = stream.standard_normal((number, width)).astype("float32")
    scores = sharpness * np.tanh(2 * x @ first) @ second
    # Gumbel noise makes a draw from the softmax of a maximum.
    y = np.argmax(scores + stream.gumbel(size=scores.shape), axis=1)
    layers = keras.layers

    def build(learning_rate, momentum=0.0):
        return _compiled(
            [
                keras.Input((width,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(64, activation="relu"),
                layers.Dense(classes),
            ],
            learning_rate,
            momentum,
        )

    return BuiltInTask(
        "teacher",
        build,
        (x[:num_examples], y[:num_examples]),
        (x[num_examples:], y[num_examples:]),
        learning_rate=0.2,
        batch_size=32,
    )


def _compiled(stack, learning_rate, momentum):
    model = keras.Sequential(stack)
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=momentum),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


TASKS = {"digits": digits, "text": text, "teacher": teacher}
"""Name -> callable that makes the `BuiltInTask`."""
