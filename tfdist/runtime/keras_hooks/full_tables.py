"""Dynamic tables whose rows are all taken: a warning when `fit` ends."""

from absl import logging


class FullTables:
    """Looks at the dynamic tables of a model for one call of `fit`.

    Args:
      running: Its `RunningFit`.
      tables: List of `DynamicTable`.
    """

    def __init__(self, running, tables):
        self._running = running
        self._tables = tables
        self._is_watched = False

    def call(self, call_in_fit, function, *args):
        """Calls a training step; the first time, Keras has callbacks."""
        if not self._is_watched:
            self._is_watched = True
            self._running.before_end(self._warn)
        return call_in_fit(function, *args)

    def _warn(self):
        for table in self._tables:
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
