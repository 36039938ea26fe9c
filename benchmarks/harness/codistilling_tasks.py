"""What groups learn in `benchmarks/codistillation.py`: the next character."""

import dataclasses
import pathlib
import sysconfig
from typing import Any

import numpy as np

NUM_VALIDATION = 8_000
_CONTEXT = 10
_ALPHABET = "".join(map(chr, [*range(32, 65), *range(91, 127), 10]))
_LEFT_OUT = {"idlelib", "lib2to3", "pydoc_data", "site-packages"}
_LEFT_OUT |= {"test", "tests"}


@dataclasses.dataclass(frozen=True)
class Task:
    """Data and a network.

    Attributes:
      train: `(x, y)`: (examples, 10) int32 and (examples,) int32.
      validation: Others.
      num_classes: Characters that there are.
    """

    train: tuple
    validation: tuple
    num_classes: int

    def build(self) -> Any:
        """A `keras.Model`, built and not compiled; its outputs are logits."""
        import keras

        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((_CONTEXT,), dtype="int32"),
                layers.Embedding(self.num_classes, 16),
                layers.Flatten(),
                layers.Dense(256, activation="relu"),
                layers.Dense(self.num_classes),
            ]
        )


def text(num_examples):
    """Python's documentation: `tfdist.simulation.tasks.text`, more of it."""
    from tfdist.simulation import tasks

    task = tasks.text(num_examples, NUM_VALIDATION)
    classes = 1 + max(
        int(part.max()) for part in (*task.train, *task.validation)
    )
    return Task(task.train, task.validation, classes)


def library(num_examples):
    """The source of Python's standard library, without its tests.

    Twelve million characters: enough for groups that see no example twice. It
    differs a little between versions of Python. Files are put in a random
    order; the last tenth of the text is for validation.
    """
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not _LEFT_OUT & set(path.relative_to(root).parts)
    )
    number_of = np.full(256, -1, "int32")
    number_of[[ord(character) for character in _ALPHABET]] = range(
        len(_ALPHABET)
    )
    texts = []
    for path in files:
        codes = number_of[np.frombuffer(path.read_bytes().lower(), "uint8")]
        texts.append(codes[codes >= 0])
    stream = np.random.default_rng(0)
    stream.shuffle(texts)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate(texts), _CONTEXT + 1
    )
    begin = int(0.9 * len(windows))
    train = windows[stream.choice(begin, num_examples, replace=False)]
    # Apart by more than a window: nothing is in both.
    rest = np.arange(begin + _CONTEXT + 1, len(windows))
    validation = windows[stream.choice(rest, NUM_VALIDATION, replace=False)]
    return Task(
        (train[:, :-1], train[:, -1]),
        (validation[:, :-1], validation[:, -1]),
        len(_ALPHABET),
    )


TASKS = {"text": text, "library": library}
"""Name -> callable of the number of examples that makes the `Task`."""
