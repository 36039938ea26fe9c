"""Updates that are not finite, and what is done about them.

One NaN in one gradient of one worker would be in all parameters of all
workers a few steps later. So a worker looks at all that it is about to push,
gradients and other state, before any of it leaves: one flag goes along to all
servers, and each of them carries out its part of the step only if it is true.
No server can have applied its part of an update that another one refuses.
"""

import tensorflow as tf

from tfdist import nonfinite_log


class Nonfinite(nonfinite_log.NonfiniteLog):
    """Looks at the updates of one worker.

    Args:
      store: The `ParameterStore`.
      choice: One of `nonfinite_log.CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
    """

    def __init__(self, store, choice, worker):
        super().__init__(choice, worker, "servers")
        self._store = store
        self._refused = store.worker_variable(
            tf.zeros([], tf.bool), "update_was_refused"
        )

    @property
    def drops(self):
        """Whether updates are left out."""
        return self._choice == "drop"

    def begin_step(self):
        """Builds: nothing of this step has been refused so far."""
        if self.drops:
            self._refused.assign(False, read_value=False)

    def check(self, records, *, is_step, follows=False, more=()):
        """Builds the look at what is about to be pushed.

        Args:
          records: List of `Update` and `Mutation`.
          is_step: Whether an optimizer's step is among it.
          follows: Whether it comes after an optimizer's step, as averages of
            weights do: it is left out if that was.
          more: Pairs of a name and a tensor that have to be finite, too.

        Returns:
          A scalar bool tensor on the worker; None where nothing is looked at.
          With "fail" it never comes if it would be false.
        """
        if not self.looks:
            return None
        what = "update" if is_step else "change of state"
        names, flags = [], []
        for name, tensor in [*_pushed(records), *more]:
            # Where it is, which may be a GPU or a placed layer's device.
            with tf.device(tensor.device or None):
                flags.append(tf.reduce_all(tf.math.is_finite(tensor)))
            names.append(name)
        with tf.device(self._store.worker_device):
            each = tf.stack(flags) if flags else tf.ones([0], tf.bool)
            finite = tf.reduce_all(each)
            if self._choice == "fail":
                message = self.build_text(names, each, what)
                shown = tf.debugging.Assert(finite, [message])
                with tf.control_dependencies([shown]):
                    return tf.identity(finite)

            def report():
                with tf.device(self._store.worker_device):
                    self.build_report(names, each, what)
                return True

            tf.cond(finite, lambda: True, report)
            if follows and not is_step:
                finite &= tf.logical_not(self._refused.read_value())
            if is_step:
                self._refused.assign(~finite, read_value=False)
            return finite


def _pushed(records):
    """Pairs of a variable's name and what is pushed for it, if it has NaN."""
    for record in records:
        value = getattr(record, "value", None)
        if value is None:
            value = (record.args, record.kwargs)
        for leaf in tf.nest.flatten(value):
            if isinstance(leaf, tf.IndexedSlices):
                leaf = leaf.values
            if not isinstance(leaf, tf.Tensor):
                continue
            name = record.variable.name.split(":")[0]
            if leaf.dtype.is_complex:
                yield name, tf.math.real(leaf)
                yield name, tf.math.imag(leaf)
            elif leaf.dtype.is_floating:
                yield name, leaf
