"""Local steps on a worker of a cluster without servers."""

import time

import tensorflow as tf

from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.local_steps import local
from tfdist.runtime.variables.server_scope import read_replica


class RingLocal(local.Local):
    """See `Local`; its exchanges need all workers, so that none may end alone.

    A worker whose `fit` is over takes part in the exchanges of the others
    until theirs is, too: in `barrier`, in an evaluation after `fit`, at the
    beginning of the next `fit`, at the latest when the process ends.

    Args:
      runtime: The `Runtime`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      ring: The `Ring`.
      **kwargs: See `Local`.
    """

    def __init__(self, runtime, method, synchronization, *, ring, **kwargs):
        super().__init__(runtime, method, synchronization, ring=ring, **kwargs)
        self._ring = ring
        # Whether others may wait for this worker.
        self._open = False
        # Whether an optimizer has begun to train since they last did not.
        self._has_begun = False
        self._exchanged = 0

    def _inner(self, *args):
        inner = super()._inner(*args)
        if not any(inner is known for known in self._ring.inners):
            self._ring.inners.append(inner)
        return inner

    def _agree(self, clock):
        if self._has_begun:
            raise ValueError(
                'With communication="ring" one optimizer trains at a time, '
                "and a second one takes its first step. Use "
                'communication="parameter_server", or let training end '
                "(`strategy.barrier`) in between."
            )
        self.show_anchor()
        self._ring.begin(f"local_steps={self.method!r}")
        self._adopt_others()
        self._open = self._has_begun = True

    def _adopt_others(self):
        """Takes over fresh values, but for own weights that are kept."""
        kept = set()
        if self.method.keeps_own:
            for inner in self._inners.values():
                kept.update(v.ordinal for v in inner.parameters)
        for variable in self._of_model():
            if variable.ordinal not in kept:
                shadow = self._faces.shadow(variable)
                assign(shadow.local_handle, read_replica(variable))

    def watch(self, call):
        self.finish()
        super().watch(call)
        if self._inners:
            self._runtime.commit()
            self._ring.spread()
            self._traced.call(
                ("adopt others", len(self._store.variables)),
                self._adopt_others,
            )
            self._open = True

    def _is_in_midst(self):
        # Nothing tells when a training loop of the user's own has ended.
        return self.fit is None or self._is_training()

    def before_pull(self):
        if not self._is_in_midst():
            self.flush()
            return True
        self.show_anchor()
        return not self.unpushed()

    def flush(self, last=False):
        if last or not self._is_training():
            self.finish()
        elif self.unpushed():
            self._take_turn(training=True)
        self.show_anchor()

    def tidy(self):
        """Without servers nothing is let go of, see `VariableList`."""

    def finish(self):
        if not self.is_open():
            return
        while True:
            called = self._take_turn(training=False)
            if not called.workers and not called.training:
                break
        self._open = self._has_begun = False
        self._exchanged = self._runtime.journal.count
        self.show_anchor()

    def is_open(self):
        """Whether others may wait for this worker."""
        return (
            self._open
            or self._runtime.journal.count != self._exchanged
            or self.unpushed()
        )

    def _take_turn(self, *, training):
        """Takes part in one exchange, with what is left or with nothing.

        Returns:
          What all workers have brought to it, a `Called`.
        """
        mine = [k for k, i in enumerate(self._ring.inners) if _has_steps(i)]
        if mine:
            inner = self._ring.inners[mine[0]]
            self._traced.call(
                ("look", mine[0]), lambda: self._build_look(inner)
            )
        began = time.time()
        called = self._ring.call(mine[0] if mine else None, training=training)
        seconds = began, time.time() - began
        if called.workers:
            number = round(called.number / called.workers)
            self._ring.exchange(
                number, called, bool(mine), seconds, self._build_turn
            )
        return called

    def _build_look(self, inner):
        self._faces.show(self._of_model(), own=True)
        self._exchange.look(inner)

    def _build_turn(self, inner, this_round):
        with tf.control_dependencies([this_round.began]):
            self._faces.show(self._of_model(), own=True)
        self._exchange.build(inner, {}, this_round=this_round)


def _has_steps(inner):
    return int(inner.since_push.numpy()) > 0
