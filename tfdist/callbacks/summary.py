"""The figures of a cluster's training, from those of its workers."""

import collections


class WorkerFigures:
    """Adds up one worker's exchanges."""

    def __init__(self):
        self.steps = 0
        self._staleness = collections.Counter()
        self._sums = collections.Counter()

    def add(self, exchanges):
        """Takes in a list of `tfdist.parameter_server.journal.Exchange`."""
        self.steps += len(exchanges)
        self._staleness.update(e.staleness for e in exchanges)
        for name in (
            "compute_seconds",
            "exchange_seconds",
            "wait_seconds",
            "bytes_sent",
            "bytes_received",
        ):
            self._sums[name] += sum(getattr(e, name) for e in exchanges)

    def report(self, seconds):
        """What the chief needs to know, as JSON can hold it.

        Args:
          seconds: How long this worker has trained.
        """
        return {
            "steps": self.steps,
            "seconds": seconds,
            "staleness": sorted(self._staleness.items()),
            **self._sums,
        }


def summarize(reports, versions):
    """The cluster's figures.

    Args:
      reports: Dict of task name to `WorkerFigures.report`.
      versions: Updates applied by each server since training first began.

    Returns:
      A dict: `updates_applied`, `gradients_pushed`, `gradients_dropped`
      (ints), `staleness` (`mean`, `p95`, `max`), `steps_per_second` (sum over
      workers), `exchange_share` and `wait_share` (of the workers' time, 0 to
      1), `bytes_sent`, `bytes_received`, and `workers`, a list of dicts with
      `name`, `steps`, `seconds`, `steps_per_second`, `staleness_mean`,
      `exchange_share`.
    """
    staleness = collections.Counter()
    workers = []
    for name, report in sorted(reports.items()):
        own = collections.Counter(dict(report["staleness"]))
        staleness.update(own)
        seconds = report["seconds"]
        workers.append(
            {
                "name": name,
                "steps": report["steps"],
                "seconds": seconds,
                "steps_per_second": _ratio(report["steps"], seconds),
                "staleness_mean": _mean(own),
                "exchange_share": _ratio(
                    report.get("exchange_seconds", 0.0), seconds
                ),
                "wait_share": _ratio(report.get("wait_seconds", 0.0), seconds),
            }
        )
    total = sum(w["seconds"] for w in workers)
    pushed = sum(w["steps"] for w in workers)
    return {
        "updates_applied": versions[0],
        "gradients_pushed": pushed,
        "gradients_dropped": 0,
        "staleness": {
            "mean": _mean(staleness),
            "p95": _quantile(staleness, 0.95),
            "max": max(staleness, default=0),
        },
        "steps_per_second": sum(w["steps_per_second"] for w in workers),
        "exchange_share": _ratio(_sum(reports, "exchange_seconds"), total),
        "wait_share": _ratio(_sum(reports, "wait_seconds"), total),
        "bytes_sent": _sum(reports, "bytes_sent"),
        "bytes_received": _sum(reports, "bytes_received"),
        "workers": workers,
    }


def table(summary):
    """The summary as text for people."""
    staleness = summary["staleness"]
    lines = [
        f"Updates applied: {summary['updates_applied']}; gradients pushed: "
        f"{summary['gradients_pushed']}, dropped: "
        f"{summary['gradients_dropped']}.",
        f"Staleness: mean {staleness['mean']:.2f}, p95 {staleness['p95']}, "
        f"max {staleness['max']}.",
        f"Share of the workers' time: exchange "
        f"{summary['exchange_share']:.1%}, waiting "
        f"{summary['wait_share']:.1%}.",
        f"{'worker':24}{'steps':>8}{'steps/s':>10}{'staleness':>11}"
        f"{'exchange':>10}",
    ]
    for worker in summary["workers"]:
        lines.append(
            f"{worker['name']:24}{worker['steps']:>8}"
            f"{worker['steps_per_second']:>10.1f}"
            f"{worker['staleness_mean']:>11.2f}"
            f"{worker['exchange_share']:>10.1%}"
        )
    return "\n".join(lines)


def _ratio(part, whole):
    return part / whole if whole else 0.0


def _sum(reports, name):
    return sum(report.get(name, 0) for report in reports.values())


def _mean(counts):
    total = sum(counts.values())
    return _ratio(sum(value * n for value, n in counts.items()), total)


def _quantile(counts, share):
    """Smallest value that at least `share` of all do not exceed."""
    total = sum(counts.values())
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= share * total:
            return value
    return 0
