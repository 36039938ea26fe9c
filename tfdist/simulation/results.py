"""The results of a comparison of methods."""

import csv
import json
import math
import numbers
import os
import pathlib
from typing import Any

import numpy as np

from tfdist import checks
from tfdist.simulation import curves
from tfdist.simulation import tables
from tfdist.simulation.history import without_nan

ONE_MACHINE = "one machine"
"""Name of the training that speed-ups are over."""

_TARGET_SHARE = 0.95


class Comparison:
    """Runs by method, number of workers, learning rate and seed.

    Args:
      runs: Dict of (name of the method, number of workers) to a dict of
        learning rate to a list of `History`, one for each seed.
      metric: What is judged by; default: see `curves.default_metric`.
      target: Value of the metric whose time is taken; default: 95 % of the
        best final one (of a loss, the best divided by 0.95; below 0 as far
        from the best), that of the one machine aside.
      at_seconds: Virtual time at which the metric is compared; default: the
        end of the fastest training that did not diverge.
      added_rates: Dict of (method, number of workers) to the learning rates
        that were tried beyond the given ones, as the best one so far was at
        the edge.

    Attributes:
      metric: Its name.
      smaller_is_better: Whether it is a loss or an error.
      target: Float, None if nothing was evaluated to a number.
      at_seconds: Float.
      keys: List of (method, number of workers).
      picked: Dict of these to the learning rate with the best mean final
        metric, over those where fewer runs diverged; if all runs of all rates
        did, the least.
      added_rates: Dict of those for which rates were added, to these.
    """

    def __init__(
        self,
        runs: Any,
        *,
        metric: str | None = None,
        target: float | None = None,
        at_seconds: float | None = None,
        added_rates: Any = None,
    ):
        self._runs = runs
        self.added_rates = dict(added_rates or {})
        everything = [h for rates in runs.values() for h in _flat(rates)]
        self.keys = list(runs)
        names = {name for h in everything for name in h.evaluations[-1]}
        if metric is not None:
            checks.one_of("metric", metric, sorted(names))
        self.metric = metric or curves.default_metric(everything)
        self.smaller_is_better = curves.smaller_is_better(self.metric)
        self._epochs = max(h.evaluations[-1]["epoch"] for h in everything)
        self.picked = {
            key: max(
                rates, key=lambda rate, r=rates: self._score(rate, r[rate])
            )
            for key, rates in runs.items()
        }
        self.target = self._default_target() if target is None else target
        self.at_seconds = at_seconds
        if at_seconds is None:
            self.at_seconds = self._default_at_seconds()

    def at_the_edge(self) -> list[tuple[str, int]]:
        """Those whose best learning rate is the least or the greatest tried.

        A better one may lie beyond it. Where a model's own rate (None) was
        tried, none is.

        Returns:
          List of (method, number of workers).
        """
        return [
            key
            for key, rate in self.picked.items()
            if len(self._runs[key]) > 1
            and all(map(_is_number, self._runs[key]))
            and rate in (min(self._runs[key]), max(self._runs[key]))
        ]

    def _score(self, rate, histories):
        """Returns a score that is greater for the better learning rate."""
        diverged = sum(history.diverged for history in histories)
        finals = [
            curves.last(history, self.metric)
            for history in histories
            if not history.diverged
        ]
        final = float(np.mean(finals)) if finals else math.nan
        if not math.isfinite(final):
            # A better rate than these can only be lower.
            lower = -rate if _is_number(rate) else 0.0
            return -diverged, -math.inf, lower
        return -diverged, -final if self.smaller_is_better else final, 0.0

    def _default_target(self):
        finals = [
            _mean(curves.last(h, self.metric) for h in self.histories(*key))
            for key in self._compared
        ]
        finals = [final for final in finals if math.isfinite(final)]
        if not finals:
            return None
        if self.smaller_is_better:
            best = min(finals)
            return best + abs(best) * (1 / _TARGET_SHARE - 1)
        best = max(finals)
        return best - abs(best) * (1 - _TARGET_SHARE)

    def _default_at_seconds(self):
        picked = [self.histories(*key) for key in self._compared]
        well = [hs for hs in picked if not any(h.diverged for h in hs)]
        return min(_mean(h.seconds for h in hs) for hs in well or picked)

    @property
    def _compared(self):
        return [k for k in self.keys if k[0] != ONE_MACHINE] or self.keys

    @property
    def methods(self) -> list[str]:
        """The methods' names in their order, without the one machine."""
        names = dict.fromkeys(method for method, _ in self.keys)
        return [name for name in names if name != ONE_MACHINE]

    @property
    def num_workers(self) -> list[int]:
        """The numbers of workers, rising, without the one machine."""
        return sorted({n for method, n in self.keys if method != ONE_MACHINE})

    def histories(self, method: str, num_workers: int) -> list[Any]:
        """The `History` of each seed, with the picked learning rate."""
        key = (method, num_workers)
        return self._runs[key][self.picked[key]]

    def rows(self) -> list[dict[str, Any]]:
        """Its figures: one dict for each method and number of workers.

        Of the picked learning rate, and over all seeds:

        `method`, `num_workers`, `learning_rate` (None: the model's own),
        `metric` (its name), `diverged` and `seeds` (how many runs);
        of the metric `final_mean` and `final_std` (of the sample),
        `best_mean`, `mean_over_epochs` (the area under its curve, divided by
        the epochs), `at_seconds` (that time) and `mean_at_seconds`;
        `target`, `epochs_to_target`, `updates_to_target` and
        `seconds_to_target` (means; None unless every seed reached it),
        `seconds`, `examples_per_second`, and over one machine
        `speed_up` (of examples per second) and `speed_up_to_target`;
        `staleness_mean` and `staleness_p95` of the gradients that count,
        `dropped` (share of the gradients), `gigabytes`, `utilization`.
        Means are NaN where a run diverged to NaN.
        """
        rows = [self._row(*key) for key in self.keys]
        alone = {row["method"]: row for row in rows}.get(ONE_MACHINE)
        for row in rows:
            row["speed_up"] = row["speed_up_to_target"] = None
            if alone is None:
                continue
            row["speed_up"] = _ratio(
                row["examples_per_second"], alone["examples_per_second"]
            )
            row["speed_up_to_target"] = _ratio(
                alone["seconds_to_target"], row["seconds_to_target"]
            )
        return rows

    def _row(self, method, num_workers):
        histories = self.histories(method, num_workers)
        metric = self.metric
        finals = [curves.last(history, metric) for history in histories]
        staleness = np.concatenate([h.staleness for h in histories])
        accepted = np.concatenate([h.jobs["accepted"] for h in histories])
        alone = method == ONE_MACHINE
        return {
            "method": method,
            "num_workers": num_workers,
            "learning_rate": self.picked[method, num_workers],
            "metric": metric,
            "seeds": len(histories),
            "diverged": sum(bool(h.diverged) for h in histories),
            "final_mean": _mean(finals),
            "final_std": float(curves.spread(finals)),
            "best_mean": _mean(curves.best(h, metric) for h in histories),
            "mean_over_epochs": _mean(
                curves.mean_over_epochs(h, metric, self._epochs)
                for h in histories
            ),
            "at_seconds": self.at_seconds,
            "mean_at_seconds": _mean(
                curves.value_at(h, metric, self.at_seconds, "seconds")
                for h in histories
            ),
            "target": self.target,
            **{
                f"{name}_to_target": self._mean_to_target(histories, axis)
                for name, axis in (
                    ("epochs", "epoch"),
                    ("updates", "updates"),
                    ("seconds", "seconds"),
                )
            },
            "seconds": _mean(h.seconds for h in histories),
            "examples_per_second": _mean(
                h.examples_per_second for h in histories
            ),
            "staleness_mean": _mean(staleness) if len(staleness) else 0.0,
            "staleness_p95": float(np.percentile(staleness, 95))
            if len(staleness)
            else 0.0,
            "dropped": 1.0 - _mean(accepted),
            # One machine alone sends nothing.
            "gigabytes": 0.0
            if alone
            else _mean(h.total_bytes / 1e9 for h in histories),
            "utilization": _mean(h.utilization for h in histories),
        }

    def _mean_to_target(self, histories, axis):
        if self.target is None:
            return None
        reached = [
            curves.first_at(history, self.metric, self.target, axis)
            for history in histories
        ]
        return None if None in reached else _mean(reached)

    def table(self) -> str:
        """Tables for a person: what is learned, how soon, what it takes."""
        return tables.of_comparison(self)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes `rows` to a file, one line each."""
        rows = self.rows()
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def as_dict(self) -> dict[str, Any]:
        """All of it but single gradients, as JSON can hold it.

        Numbers that are not finite are None.
        """
        return without_nan(
            {
                "metric": self.metric,
                "target": self.target,
                "at_seconds": self.at_seconds,
                "rows": self.rows(),
                "runs": [
                    {
                        **history.summary(),
                        "learning_rate": rate,
                        "picked": rate == self.picked[key],
                        "evaluations": history.evaluations,
                    }
                    for key, rates in self._runs.items()
                    for rate, histories in rates.items()
                    for history in histories
                ],
            }
        )

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `as_dict` to a file."""
        text = json.dumps(self.as_dict(), indent=1, allow_nan=False)
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def _is_number(rate):
    return isinstance(rate, numbers.Real)


def _flat(rates):
    return [history for histories in rates.values() for history in histories]


def _mean(values):
    return float(np.mean(list(values)))


def _ratio(number, other):
    return number / other if number is not None and other else None
