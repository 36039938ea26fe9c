"""What all benchmarks do alike: they begin, take turns, and report."""

import json
import statistics

from absl import app


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
