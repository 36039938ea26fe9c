"""Iterators of data sets are deleted in the background."""

import gc
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import waits
import tfdist
from tfdist.data_shares import iterators

# Only a test that fails waits for as long.
_SECONDS = 60


class Source:
    """A Python generator that takes long to end."""

    def __init__(self):
        self.may_end = threading.Event()
        # Whether it was allowed to end, once it has ended.
        self.ended = []

    def dataset(self):
        return tf.data.Dataset.from_generator(
            self._generate, output_signature=tf.TensorSpec([None, 1])
        )

    def _generate(self):
        try:
            for _ in range(4):
                yield [[1.0]]
        finally:
            self.ended.append(self.may_end.wait(_SECONDS))


def test_who_lets_go_of_an_iterator_does_not_wait_for_its_end():
    source = Source()
    iterator = iterators.iterate(source.dataset())
    next(iterator)
    del iterator
    assert not source.ended
    source.may_end.set()
    waits.wait_until(lambda: source.ended, "an iterator to end")
    assert source.ended == [True]


def test_several_iterators_are_deleted_one_after_another():
    sources = [Source(), Source(), Source()]
    for source in sources:
        source.may_end.set()
        next(iterators.iterate(source.dataset()))
    waits.wait_until(
        lambda: all(source.ended for source in sources),
        "three iterators to end",
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("call", "steps"),
    [("fit", "steps_per_epoch"), ("evaluate", "steps"), ("predict", "steps")],
)
def test_keras_does_not_wait_for_the_end_of_its_iterator(call, steps):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    source = Source()
    pairs = source.dataset().map(lambda x: (x, x))
    getattr(model, call)(pairs, **{steps: 2}, verbose=0)
    gc.collect()
    assert not source.ended
    source.may_end.set()
    waits.wait_until(lambda: source.ended, "the iterator of Keras to end")
    assert source.ended == [True]


def test_a_generator_is_read_by_one_iterator_at_a_time():
    """Keras prefetches from it; it must not be entered twice."""
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    pause = threading.Event()

    def generate():
        while True:
            # Others that read it would come meanwhile.
            pause.wait(0.1)
            yield [[[1.0]], [[1.0]]]

    batches = (tuple(map(np.array, pair)) for pair in generate())
    for _ in range(2):
        model.evaluate(batches, steps=2, verbose=0)


@pytest.mark.nightly
def test_an_iterator_of_debug_mode_is_left_as_it_is():
    # It is for a whole process.
    code = (
        "import tensorflow as tf\n"
        "tf.data.experimental.enable_debug_mode()\n"
        "from tfdist.data_shares import iterators\n"
        "print(sum(map(int, iterators.iterate(tf.data.Dataset.range(4)))))\n"
    )
    assert _run(code).stdout == "6\n"


@pytest.mark.nightly
def test_the_process_ends_while_an_iterator_is_being_deleted():
    code = (
        "import threading, time\n"
        "import tensorflow as tf\n"
        "from tfdist.data_shares import iterators\n"
        "begun = threading.Event()\n"
        "def generate():\n"
        "    try:\n"
        "        yield from range(4)\n"
        "    finally:\n"
        "        begun.set()\n"
        "        time.sleep(8)\n"
        "        print('ended', flush=True)\n"
        "made = tf.data.Dataset.from_generator(\n"
        "    generate, output_signature=tf.TensorSpec([], tf.int64))\n"
        "next(iterators.iterate(made))\n"
        "assert begun.wait(60)\n"
    )
    ended = _run(code)
    assert ended.stdout == "ended\n"
    assert "Waits for TensorFlow to delete" in ended.stderr


def _run(code):
    return waits.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
