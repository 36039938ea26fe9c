"""Scripts of what happens to the processes of a `Run`, drawn by hypothesis."""

from hypothesis import strategies as st


def one_kill_each(run, action, worker):
    """For `allows` of a `Run` with servers that lag.

    The ring of the log is for workers that are behind by one gradient each,
    and as many again in their second lives.
    """
    kills = ("kill", "end", "crash")
    return action not in kills or run.processes[worker].lives == 1


FAILURES = (
    "kill",
    "restart",
    "crash",
    "stop",
    "resume",
    "wait",
    "end",
    "leave",
    "begin",
)


def scripts(failures=FAILURES, max_size=60):
    """A strategy for scripts of `Run.play`; mostly workers advance.

    Args:
      failures: Actions beside that.
      max_size: Length of the longest.
    """
    action = st.sampled_from(("advance",) * 2 * len(failures) + failures)
    advance = st.just("advance")
    event = st.tuples(action if failures else advance, st.integers(0, 11))
    # Left to itself, hypothesis prefers lists of some five elements.
    long = st.lists(event, min_size=max_size // 2, max_size=max_size)
    return st.one_of(st.lists(event, max_size=max_size // 2), long)
