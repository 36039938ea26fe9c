"""Single runs in a file, and the search for each method's own rate."""

import json
import pathlib

import numpy as np

BASE_RATE, FACTOR = 0.1, 1.5
SEEDS, TUNED_SEEDS = (1, 2, 3, 4, 5), (1, 2)
# Rates that are tried on all seeds.
FINALISTS = 2


class RateSearch:
    """All runs, each a line of a file, by rates in a grid of factor 1.5.

    Args:
        path: of the file, which may exist: what is in it is not run again.
        key_of: Run -> what has a rate of its own, hashable; None for a run that
            only is kept.
        value_of: Run -> what the best rate makes highest.

    Attributes:
        runs: key -> exponent of the rate -> seed -> run.
        others: list of runs that are only kept.
    """

    def __init__(self, path, key_of, value_of):
        self._path = pathlib.Path(path)
        self._key_of = key_of
        self._value_of = value_of
        self.runs = {}
        self.others = []
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                self._add(json.loads(line))

    def write(self, run):
        """Adds a run, and a line to the file."""
        with self._path.open("a") as file:
            file.write(json.dumps(run) + "\n")
        self._add(run)

    def _add(self, run):
        key = self._key_of(run)
        if key is None:
            self.others.append(run)
            return
        rates = self.runs.setdefault(key, {})
        rates.setdefault(exponent_of(run["rate"]), {})[run["seed"]] = run

    def best(self, key):
        """The exponent of the best rate of those with the most seeds."""
        rates = self.runs[key]
        most = max(map(len, rates.values()))
        full = [e for e, runs in rates.items() if len(runs) == most]
        return max(full, key=lambda e: self._mean(rates[e].values()))

    def is_inside(self, key):
        """Whether a lower and a higher rate than the best one were tried."""
        return min(self.runs[key]) < self.best(key) < max(self.runs[key])

    def _mean(self, runs):
        return float(np.mean([self._value_of(run) for run in runs]))

    def need(self, key, exponent, seeds, run):
        """Mean value over seeds; runs that are missing are made.

        Args:
            key: as `key_of` gives.
            exponent: of the rate.
            seeds: iterable.
            run: called with the rate and a seed; returns a dict that JSON can
                hold, with `rate` and `seed`.
        """
        for seed in seeds:
            if seed in self.runs.get(key, {}).get(exponent, {}):
                continue
            self.write(run(rate_of(exponent), seed))
        runs = self.runs[key][exponent]
        return self._mean([runs[seed] for seed in seeds])

    def tune(self, key, centre, run, scanned=()):
        """Looks for the best rate, and runs with it on all seeds.

        Rates beside the best one are tried until both of its neighbours are
        worse, on `TUNED_SEEDS`; then the `FINALISTS` on `SEEDS`.

        Args:
            key: as `key_of` gives.
            centre: exponent to begin with.
            run: as for `need`.
            scanned: exponents, relative to it, of rates that are tried first.
        """

        def value(exponent):
            return self.need(key, exponent, TUNED_SEEDS, run)

        centre = max([centre, *(centre + k for k in scanned)], key=value)
        while True:
            best = max((centre, centre - 1, centre + 1), key=value)
            if best != centre:
                centre = best
                continue
            ranked = sorted(self.runs[key], key=value, reverse=True)
            for exponent in ranked[:FINALISTS]:
                self.need(key, exponent, SEEDS, run)
            centre = self.best(key)
            if {centre - 1, centre + 1} <= self.runs[key].keys():
                return


def rate_of(exponent):
    """The rate of the grid, with four digits."""
    return float(f"{BASE_RATE * FACTOR**exponent:.4g}")


def exponent_of(rate):
    """The exponent of the rate of the grid that is nearest."""
    return round(np.log(rate / BASE_RATE) / np.log(FACTOR))


def standard_error(values):
    """The standard error of a mean; 0 of one value."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
