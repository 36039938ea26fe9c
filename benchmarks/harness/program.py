"""What all benchmarks do alike: they begin, take turns, and report."""

import json
import os
import statistics
import tempfile

from absl import app
from absl import flags


def run(main):
    """Runs a benchmark that takes flags only.

    Args:
        main: function without arguments.
    """

    def checked(argv):
        if len(argv) > 1:
            raise app.UsageError(
                f"Arguments must be flags. Received: {argv[1:]}"
            )
        main()

    app.run(checked)


def define_flags_of_runs(methods, counts):
    """Defines the flags of a comparison by single runs of virtual workers.

    Args:
        methods: names of all methods.
        counts: the default of `--workers`, in words.
    """
    flags.DEFINE_bool("quick", False, "Few methods, one seed: under a minute.")
    flags.DEFINE_multi_enum(
        "task", None, ["digits", "text"], "Default: both; digits if --quick."
    )
    flags.DEFINE_multi_integer(
        "workers",
        None,
        f"Default: {counts}; 4 if --quick.",
        lower_bound=1,
    )
    flags.DEFINE_multi_enum("method", None, list(methods), "Default: all.")
    flags.DEFINE_string(
        "results", None, "A file for single runs. Default: a temporary one."
    )
    flags.DEFINE_bool("show", False, "Only print what is in the file.")


def path_of_runs():
    """The file that `--results` names, or a temporary one."""
    return flags.FLAGS.results or os.path.join(tempfile.mkdtemp(), "runs.jsonl")


def take_turns(systems, rounds):
    """Lets systems take turns, so that what else runs meets them alike.

    Args:
        systems: name -> callable without arguments.
        rounds: number of turns of each.

    Returns:
        Name -> list of what was returned, one per round.
    """
    found = {name: [] for name in systems}
    for _ in range(rounds):
        for name, turn in systems.items():
            found[name].append(turn())
    return found


def milliseconds(seconds):
    """The median of seconds, in milliseconds."""
    return round(1e3 * statistics.median(seconds), 3)


def median_ratio(numerators, denominators):
    """The median of the ratios within each round."""
    pairs = zip(numerators, denominators, strict=True)
    return round(statistics.median(n / d for n, d in pairs), 3)


def report(benchmark, **figures):
    """Prints the last line: an object of JSON."""
    print(json.dumps({"benchmark": benchmark, **figures}))
