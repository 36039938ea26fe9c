"""The record that a worker keeps of its steps and what they exchanged."""

from tfdist.all_reduce import journal


class PeerJournal(journal.StepJournal):
    """A ring buffer of the last steps.

    Extras of a step are bytes sent to all others, bytes received since the
    step before, and the staleness of the messages that came: the updates that
    this worker had made since those that their sender had applied.
    """

    def __init__(self):
        super().__init__(1, extras=3)

    def figures(self, lane, sent, received, staleness):
        """Staleness, bytes sent and received; see `StepJournal`."""
        del lane
        return int(staleness), int(sent), int(received)
