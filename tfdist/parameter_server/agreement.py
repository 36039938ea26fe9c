"""What all workers have to agree on: the first one leaves it as a text."""

import tensorflow as tf


def build(store, lock_name, name, mine, create=None):
    """Builds: leaves a text on the first server, unless there is one.

    Args:
      store: The `ParameterStore`.
      lock_name: Name of a lock of the first server.
      name: Of the text, the same on all workers.
      mine: The text, a scalar string tensor.
      create: Called without arguments to build what the first worker does
        before it leaves its text; or None.

    Returns:
      The text that is there, a scalar string tensor on this worker.
    """
    handle = store.resource(0, name, tf.string, [])

    def on_server():
        return tf.device(store.devices[0])

    def leave():
        with on_server():
            made = [] if create is None else create()
            with tf.control_dependencies(made):
                tf.raw_ops.AssignVariableOp(resource=handle, value=mine)
        return True

    with on_server():
        mine = tf.identity(mine)
    with tf.control_dependencies([mine.op]):
        lock = store.lock(0, lock_name)
    with tf.control_dependencies([lock.op]), on_server():
        known = tf.raw_ops.VarIsInitializedOp(resource=handle)
        left = tf.cond(known, lambda: False, leave)
        with tf.control_dependencies([left]):
            text = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)
    with tf.control_dependencies([text.op]):
        store.unlock(0, lock)
    with tf.device(store.worker_device):
        return tf.identity(text)
