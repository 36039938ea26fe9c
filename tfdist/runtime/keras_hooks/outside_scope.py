"""Refusal of models that were made outside `strategy.scope()`, on a cluster.

Such a model would train on each worker alone, without a word: its `fit` asks no
strategy for anything. But `fit` makes variables (an optimizer's slots, those of
metrics), and TensorFlow asks scopes of variable creators for these, of which
one is left open here. `fit` of plain SGD without metrics makes none: such a
model is known by the variables of its `compile`, and a thread looks whether it
has been trained. That is logged, as a thread cannot raise an error elsewhere.
"""

import atexit
import threading
import time
import weakref

from absl import logging
import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls

# The graph with the open scope -> that scope.
_open = {}
_LOOK_SECONDS = 1.0
_MOVE = (
    "Move the line that makes it, and `model.compile(...)`, below `with "
    "strategy.scope():`. (A model that is meant to train on this worker alone "
    'goes into the scope of `tf.distribute.OneDeviceStrategy("/cpu:0")`.)'
)


def refuse_to_fit():
    """Refuses, from now on, `fit` of models that no strategy knows of."""
    # `keras.backend.clear_session()` begins another graph, without the scope.
    graph = tf.compat.v1.get_default_graph()
    if graph not in _open:
        scope = tf.variable_creator_scope(_check_and_create)
        scope.__enter__()
        _open.clear()
        _open[graph] = scope


def _check_and_create(next_creator, **kwargs):
    frame = private_keras_calls.fit_under_way()
    if frame is not None:
        _check(private_keras_calls.model_of(frame))
    else:
        model = private_keras_calls.compiling_model()
        if model is not None and private_keras.strategy_of(model) is None:
            _watch.add(model)
    return next_creator(**kwargs)


def _check(model):
    """Refuses a model that was made outside of all scopes.

    Args:
      model: A `keras.Model` that is in `fit`.

    Raises:
      ValueError: It was.
    """
    if private_keras.strategy_of(model) is not None:
        return
    raise ValueError(
        "The model of `fit` must be built and compiled inside "
        "`strategy.scope()`: on a cluster this one would train on each worker "
        f"by itself, and nobody would share its parameters. {_MOVE} Received: "
        f"{type(model).__name__} {getattr(model, 'name', '')!r}, made outside"
    )


class _Watch:
    """Models that were compiled outside of all scopes, until they train."""

    def __init__(self):
        self._models = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread = None

    def add(self, model):
        """Watches a model from now on."""
        with self._lock:
            self._models.add(model)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
                # Of those that were trained for less than a second.
                atexit.register(self.look)

    def _run(self):
        while True:
            time.sleep(_LOOK_SECONDS)
            self.look()

    def look(self):
        """Logs which of the models have been trained, each once."""
        with self._lock:
            # It is made by the first call of `fit`.
            trained = [m for m in self._models if m.train_function is not None]
            self._models -= set(trained)
        for model in trained:
            logging.error(
                "The model %r was built and compiled outside "
                "`strategy.scope()`: it trains on this worker alone, and "
                "nobody shares its parameters. %s",
                model.name,
                _MOVE,
            )


_watch = _Watch()
