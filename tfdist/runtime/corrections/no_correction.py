"""No correction: late gradients are applied as they are."""


class NoCorrector:
    """See `Corrector`, whose part it takes where there is no `Correction`."""

    # It keeps nothing, on servers or here.
    is_on_servers = False
    uses_lookahead = False

    @property
    def of_servers(self):
        """The corrections on servers: none."""
        return self

    def own_variables(self):
        """Returns this worker's slots: an empty dict."""
        return {}

    def note_given(self, shard, copies, values):
        """Builds nothing; a list of operations."""
        del shard, copies, values
        return []

    def enclosed(self, replays, buffer):
        """Adds nothing to a push; an empty dict."""
        del replays, buffer
        return {}

    def correct(self, ledger, request, taken, *, staleness, worker):
        """Returns what was kept of one exchange, uncorrected."""
        del ledger, request, staleness, worker
        return taken

    def observe(self, run, ledger, replay, section, rate):
        """Runs an optimizer's rule on a server."""
        del ledger, replay, section, rate
        run()

    def give(self, shard, copies, values):
        """Returns the values that this worker pulls: those of the server."""
        del shard, copies
        return values

    def before_push(self, records, optimizer, counter):
        """Does nothing, and returns a callable that does nothing."""
        del records, optimizer, counter
        return lambda finite: None

    def add_kept(self, request):
        """Does nothing."""

    def prepare(self, ledger, records):
        """Does nothing."""

    def prepare_again(self):
        """Does nothing."""

    def show_ahead(self):
        """Does nothing."""

    def let_go(self, ordinals):
        """Does nothing."""
