"""No correction: late gradients are applied as they are."""

from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing


class NoCorrector:
    """See `Corrector`, whose part it takes where there is no `Correction`."""

    # It keeps nothing, on servers or here.
    needs_copies = is_on_servers = False
    uses_lookahead = False
    note_given = show_ahead = empty_list
    add_kept = prepare = prepare_again = let_go = nothing

    @property
    def of_servers(self):
        return self

    def own_variables(self):
        return {}

    def enclosed(self, replays, buffer):
        return {}

    def correct(self, ledger, request, taken, *, staleness, worker):
        return taken

    def observe(self, run, ledger, replay, section, rate):
        run()

    def give(self, shard, copies, values):
        return values

    def before_push(self, records, optimizer, counter):
        return lambda finite: None
