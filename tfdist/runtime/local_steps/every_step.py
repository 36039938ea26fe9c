"""One step between exchanges: what `Local` does where K = 1."""

from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing
from tfdist.runtime.exchange import step


class EveryStep:
    """See `Local`, whose part it takes where each step is exchanged.

    Args:
      runtime: The `Runtime`.
    """

    # Replicas hold what servers gave, and nothing else.
    keeps_own_values = False
    keeps_own = False
    has_begun = False
    inners = ()
    watch = flush = finish = show_anchor = own_parts = nothing
    follow = after_pull = adopt_given = nothing
    before_variable = nothing
    in_period = outer_variables = empty_list
    before_read = after_write = tidy = let_go = note_data = nothing

    def __init__(self, runtime):
        self._runtime = runtime

    def role_of(self, role, made_by_optimizer):
        return role

    def new_step(self, arguments, evaluates):
        return step.Step(self._runtime)

    def steps_made(self):
        return max(self._runtime.updates_applied())

    def drop_unpushed(self):
        return 0

    def is_open(self):
        return False

    unpushed = has_progressed = is_open

    def before_pull(self):
        return True

    def call_in_fit(self, call, function, *args):
        return call(function, *args)
