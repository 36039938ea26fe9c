"""Settings that all workers must agree on: the first leaves them as a text."""

import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.variables import traced_calls


def build(store, lock_name, name, mine, create=None, is_made=None):
    """Builds: leaves a text on the first server, unless there is one.

    Args:
      store: The `ParameterStore`.
      lock_name: Name of a lock of the first server.
      name: Of the text, the same on all workers.
      mine: The text, a scalar string tensor.
      create: Called without arguments to build what the first worker does
        before it leaves its text; or None.
      is_made: Called without arguments to build whether that was done, a
        scalar bool tensor: a snapshot may have the text and not the rest.

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
        if is_made is not None:
            known &= is_made()
        left = tf.cond(known, lambda: False, leave)
        with tf.control_dependencies([left]):
            text = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)
    with tf.control_dependencies([text.op]):
        store.unlock(0, lock)
    with tf.device(store.worker_device):
        return tf.identity(text)


def agree(store, lock_name, name, mine, create=None, is_made=None):
    """Leaves a text on the first server, unless there is one.

    Args:
      store: The `ParameterStore`.
      lock_name: As the others, see `build`.
      name: Of the text, the same on all workers.
      mine: The text, a str.
      create: See `build`.
      is_made: See `build`.

    Returns:
      The text that is there, a str.
    """
    text = tf.constant(mine)
    function = traced_calls.trace(
        lambda text: build(store, lock_name, name, text, create, is_made), text
    )
    return function(text).numpy().decode()


def left(store, name):
    """The text that is there under `name`, a str; "" if there is none."""

    def build():
        handle = store.resource(0, name, tf.string, [])
        text = resource_values.build_read_or(handle, "")
        with tf.device(store.worker_device):
            return tf.identity(text)

    return traced_calls.trace(build)().numpy().decode()


def layout_of(records):
    """Of which variables a step has gradients, in their order, a str.

    Args:
      records: List of `Update` and `Mutation`.
    """
    return ", ".join(
        f"{record.variable.ordinal} {record.variable.name}"
        for record in records
        if isinstance(record, records_lib.Update) and record.args
    )


def is_same_layout(one, other):
    """Whether two texts from `layout_of` are of the same variables."""
    return numbers_of(one) == numbers_of(other)


def numbers_of(layout):
    """The numbers of the variables of a layout, a list of str."""
    return [text.split(" ")[0] for text in layout.split(", ")]


class Agreement:
    """Settings of one ledger that all workers must agree on.

    Args:
      store: The `ParameterStore`.
      lock_name: Name of the ledger's lock.
      name: The ledger's, the same on all workers.
      method: The synchronization and the correction, a str.
      create: Callable without arguments that builds the ledger's first state.
      is_made: Callable without arguments that builds whether there is one.
    """

    def __init__(self, store, lock_name, name, method, create, is_made):
        self._store = store
        self._lock_name = lock_name
        self._name = name
        self._method = method
        self._first_state = create, is_made
        # What gradients of this worker's steps are of.
        self._layouts = set()

    def check_method(self):
        """Makes the ledger if there is none yet.

        Raises:
          ValueError: Another worker uses another method.
        """
        theirs = self._agree("method", self._method, *self._first_state)
        if self._method != theirs:
            raise ValueError(
                "All workers must synchronize in the same way. Here "
                f"{self._method}, on the servers {theirs}."
            )

    def layout(self, mine):
        """The variables of which gradients are decided over.

        Args:
          mine: From `layout_of`; what they are if nobody has said.

        Returns:
          That of the first step, here or on another worker.
        """
        if self._layouts:
            return next(iter(self._layouts))
        theirs = self._agree("layout", mine)
        if is_same_layout(mine, theirs):
            self._layouts.add(mine)
        return theirs

    def check_layout(self, mine):
        """Refuses steps that have gradients of other variables than before.

        Each worker carries out what any has pushed, as its own.

        Args:
          mine: From `layout_of`, of the step.

        Raises:
          ValueError: Another step, here or on another worker, has others.
            Names alone may differ: Keras numbers layers by what a process has
            made before.
        """
        if mine in self._layouts:
            return
        theirs = self._agree("layout", mine)
        if not is_same_layout(mine, theirs):
            raise ValueError(
                f"With {self._method} all steps of an optimizer need gradients "
                "of the same variables, in the same order. These have those of "
                f"{mine}; others those of {theirs}. Use an optimizer for each "
                "set of variables, freeze layers between two calls of fit, or "
                "use AsyncStrategy without a correction."
            )
        self._layouts.add(mine)

    def again(self):
        """Leaves again what a server that was started again has lost."""
        self._agree("method", self._method, *self._first_state)
        for layout in self._layouts:
            self._agree("layout", layout)

    def _agree(self, setting, mine, create=None, is_made=None):
        """The text that the first worker has left of a setting, a str."""
        name = f"{self._name}/{setting}"
        return agree(self._store, self._lock_name, name, mine, create, is_made)
