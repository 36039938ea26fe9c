"""Updates that are not finite, and what is done about them.

One NaN in one gradient of one worker would be in all parameters of all
workers a few steps later. So a worker looks at all that it is about to push,
gradients and other state, before any of it leaves: one flag goes along to all
servers, and each of them carries out its part of the step only if it is true.
No server can have applied its part of an update that another one refuses.
"""

import threading
import time
import weakref

from absl import logging
import tensorflow as tf

CHOICES = ("drop", "fail", "ignore")
_LOG_SECONDS = 5.0
_MOST_NAMES = 5


class Nonfinite:
    """Looks at the updates of one worker.

    Args:
      store: The `ParameterStore`.
      choice: One of `CHOICES`.
      worker: Name of this worker, such as `/job:worker/task:0`.
    """

    def __init__(self, store, choice, worker):
        self._store = store
        self._choice = choice
        self._worker = worker
        self._refused = store.worker_variable(
            tf.zeros([], tf.bool), "update_was_refused"
        )
        self._reporting = threading.Lock()
        self._count = self._told = 0
        self._told_at = float("-inf")

    @property
    def looks(self):
        """Whether it looks at all."""
        return self._choice != "ignore"

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
                message = tf.strings.join(
                    [
                        self._beginning(is_step),
                        _joined(names, each),
                        ". " + _REMEDY,
                    ]
                )
                shown = tf.debugging.Assert(finite, [message])
                with tf.control_dependencies([shown]):
                    return tf.identity(finite)
            self._build_report(names, each, finite, is_step)
            if follows and not is_step:
                finite &= tf.logical_not(self._refused.read_value())
            if is_step:
                self._refused.assign(~finite, read_value=False)
            return finite

    def _beginning(self, is_step):
        what = "update" if is_step else "change of state"
        return (
            f"{self._worker}: the {what} of this step is not finite (it has "
            "NaN or Inf) in "
        )

    def _build_report(self, names, each, finite, is_step):
        # TensorFlow keeps what it calls in Python for good, by the process's
        # default graph.
        found = weakref.ref(self)

        def report(finite_ones):
            bad = [
                n
                for n, good in zip(names, finite_ones, strict=True)
                if not good
            ]
            if (nonfinite := found()) is not None:
                nonfinite._report(sorted(set(bad)), is_step)  # noqa: SLF001

        def build():
            with tf.device(self._store.worker_device):
                tf.numpy_function(report, [each], [])
            return True

        tf.cond(finite, lambda: True, build)

    def _report(self, names, is_step):
        """Logs, one line in some seconds, however many steps are refused."""
        with self._reporting:
            self._count += 1
            now = time.monotonic()
            if now - self._told_at < _LOG_SECONDS:
                return
            new, self._told = self._count - self._told, self._count
            self._told_at = now
        shown = ", ".join(names[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            shown += f" and {len(names) - _MOST_NAMES} more"
        logging.warning(
            '%s%s. It is left out on all servers (nonfinite="drop"); %d since '
            "the last such line, %d in all. %s",
            self._beginning(is_step),
            shown,
            new,
            self._count,
            _REMEDY,
        )


_REMEDY = (
    "Look for NaN in the data and for a learning rate that is too high; where "
    "float16 overflows, use keras.optimizers.LossScaleOptimizer."
)


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


def _joined(names, finite_ones):
    """The names of what is not finite, a scalar string tensor."""
    bad = tf.boolean_mask(tf.constant(names, tf.string), ~finite_ones)
    return tf.strings.reduce_join(tf.unique(bad)[0], separator=", ")
