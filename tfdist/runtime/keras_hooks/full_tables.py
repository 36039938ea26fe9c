"""Dynamic tables whose rows are all taken: a warning when `fit` ends."""

from absl import logging

from tfdist.runtime.keras_hooks import table_saving


class FullTables:
    """Looks at the dynamic tables of a model for one call of `fit`.

    Args:
      running: Its `RunningFit`.
      model: The `keras.Model`, which may make its tables in the first step.
      store: The `ParameterStore`.
    """

    def __init__(self, running, model, store):
        self._running = running
        self._of = model, store
        self._is_watched = False

    def call(self, call_in_fit, function, *args):
        """Calls a training step; the first time, Keras has callbacks."""
        if not self._is_watched:
            self._is_watched = True
            self._running.before_end(self._warn)
        return call_in_fit(function, *args)

    def _warn(self):
        tables = table_saving.tables_of(*self._of)
        for table in filter(lambda table: table.is_dynamic, tables):
            refused = sum(counts["refused"] for counts in table.counts())
            if refused:
                logging.warning(
                    "%d gradients of ids of %r were dropped since the servers "
                    "began: all rows that these ids may have belong to other "
                    "ids. Give tfdist.layers.DynamicEmbedding a larger "
                    "`capacity`, or a smaller `evict_after`.",
                    refused,
                    table.path,
                )
