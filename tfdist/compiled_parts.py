"""Training steps with `jit_compile=True`: XLA compiles what stays here.

XLA compiles functions as a whole, and the exchange with other processes is in
the middle of a step. So a step is not compiled as a whole: what the user's code
builds (forward and backward pass, losses, metrics) is marked, and TensorFlow
has XLA compile the largest parts of it that it can. The exchange is not
marked.
"""

import contextlib
import threading

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow

_NOT_COMPILED = ("While", "StatelessWhile", "If", "StatelessIf", "Case")


class _Compiled(threading.local):
    """Whether the step that the calling thread traces is to be compiled."""

    is_on = False


_compiled = _Compiled()


@contextlib.contextmanager
def in_parts():
    """Scope in which a step is traced that XLA was to compile as a whole."""
    if not private_tensorflow.take_back_from_xla():
        raise ValueError(
            "A step that XLA compiles as a whole cannot talk to other "
            "processes. "
            "Use jit_compile=False in model.compile or tf.function."
        )
    # Else TensorFlow replaces pairs such as a multiplication of matrices and
    # the addition after it by operations that XLA does not know.
    tf.config.optimizer.set_experimental_options({"remapping": False})
    _compiled.is_on = True
    try:
        with private_tensorflow.outside_of_xla():
            yield
    finally:
        _compiled.is_on = False


def call(function, args, kwargs):
    """Calls the user's function, and marks what it builds for XLA if asked."""
    if not _compiled.is_on:
        return function(*args, **kwargs)
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    with tf.xla.experimental.jit_scope():
        result = function(*args, **kwargs)
    left = set()
    for operation in graph.get_operations()[first:]:
        if not private_tensorflow.is_marked_for_xla(operation):
            continue
        if operation.type in _NOT_COMPILED:
            left.add(operation.type)
        elif operation.type.startswith("Stateless"):
            # XLA draws other random numbers from the same seed.
            private_tensorflow.unmark_for_xla(operation)
    if left:
        logging.warning(
            "jit_compile=True: loops and branches of this step (%s) are not "
            "compiled by XLA; what is around them is.",
            ", ".join(sorted(left)),
        )
    return result


def outside():
    """Scope in which what is built is not for XLA."""
    if _compiled.is_on:
        return tf.xla.experimental.jit_scope(compile_ops=False)
    if (
        private_tensorflow.is_compiled_by_xla()
        and private_tensorflow.take_back_from_xla()
    ):
        # The step of Keras's `predict` is a function within that of a step.
        return private_tensorflow.outside_of_xla()
    return contextlib.nullcontext()
