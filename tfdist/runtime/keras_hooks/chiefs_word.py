"""The chief's word, as the exchanges of another worker bring it."""

import tensorflow as tf

from tfdist.cluster import fit_progress
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.keras_hooks import fit_turns


class ChiefsWord:
    """The chief's `Word`, and what of it counts in a call of `fit`.

    Args:
      store: The `ParameterStore`.
      membership: The `Membership`.
      journal: The `Journal` of this worker's exchanges.
    """

    def __init__(self, store, membership, journal):
        self._store = store
        self._membership = membership
        self._journal = journal
        self._warned_of_data = False
        self._told = store.worker_variable(
            tf.constant(fit_progress.Word().pack(), tf.float64), "told"
        )

    # In the training step.

    def build_read(self):
        """Builds the reading of what the chief tells, on the first server."""
        return self._membership.tables[0].build_word(fit_turns.CHIEF)

    def build_note(self, told):
        """Builds the note of it on this worker; returns the operation."""
        return assign(self._told.local_handle, told)

    # After it.

    def look(self, fit):
        """Looks at what the chief had told at this worker's last exchange.

        What it decided when it had seen an update counts after the next one:
        so all who have the same updates follow at the same step, however fast
        they are. What stays the same for two exchanges counts in any case, as
        updates may be dropped.

        Args:
          fit: The `FitCall` under way, which takes over what counts.

        Returns:
          How far the chief had come, of `fit_progress`; 0 where no exchange
          was made since.
        """
        exchanges = self._journal.count
        if exchanges == fit.exchanges:
            return 0
        fit.exchanges, before = exchanges, fit.seen
        told = fit.seen = fit_progress.Word.unpack(self._told.numpy())
        reached = told.reached
        is_new = (told.stopped, told.rates) != (before.stopped, before.rates)
        if is_new and told.version == int(self._store.pulled_version(0)):
            told = before
        if told.number == fit.number:
            fit.told = told
            warned = self._warned_of_data or fit.data.warns(told.data)
            self._warned_of_data = warned
            if told.stopped == fit.number:
                fit.stopped = True
                fit.model.stop_training = True
        return reached
