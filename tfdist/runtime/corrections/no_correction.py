"""No correction: late gradients are applied as they are."""


class NoCorrector:
    """See `Corrector`, whose part it takes where there is no `Correction`."""

    # It keeps nothing, on servers or here.
    is_on_servers = False
    uses_lookahead = False

    @property
    def of_servers(self):
        """What servers do about gradients."""
        return self

    def own_variables(self):
        """What this worker keeps, a dict of name to variable."""
        return {}

    def note_given(self, shard, copies, values):
        """Builds nothing; a list of operations."""
        del shard, copies, values
        return []

    def enclosed(self, replays, buffer):
        """What is sent beside gradients: a dict of gradient to position."""
        del replays, buffer
        return {}

    def correct(self, ledger, request, taken, *, staleness, worker):
        """What was kept of one exchange, as it is."""
        del ledger, request, staleness, worker
        return taken

    def observe(self, run, ledger, replay, section, rate):
        """Runs an optimizer's rule on a server."""
        del ledger, replay, section, rate
        run()

    def give(self, shard, copies, values):
        """What this worker gets as fresh values: what the server holds."""
        del shard, copies
        return values

    def before_push(self, records, optimizer, counter):
        """Does nothing."""

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
