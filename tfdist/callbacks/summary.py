"""The figures of a cluster's training, from those of its workers."""

import collections
import re

from tfdist import tables

_SUMS = (
    "accepted",
    "compute_seconds",
    "exchange_seconds",
    "wait_seconds",
    "bytes_sent",
    "bytes_received",
)
_GRADIENTS = ("pushed", "accepted", "dropped")
# With the updates that the accepted ones were late by, together.
_NO_COUNTS = dict.fromkeys((*_GRADIENTS, "staleness"), 0)
_NO_REPORT = {"steps": 0, "exchanges": 0, "seconds": 0.0, "staleness": []}
# Of the printed table: title, key, form.
_COLUMNS = (
    ("worker", "name", "{}"),
    ("steps", "steps", "{}"),
    ("accepted", "gradients_accepted", "{}"),
    ("dropped", "gradients_dropped", "{}"),
    ("steps/s", "steps_per_second", "{:.1f}"),
    ("staleness", "staleness_mean", "{:.2f}"),
    ("communication", "exchange_share", "{:.1%}"),
    ("waited s", "waited_seconds", "{:.1f}"),
    ("MB", "megabytes", "{}"),
)
_OF_DROPPING = ("gradients_accepted", "gradients_dropped")
_OF_EXCHANGES = ("exchange_share", "waited_seconds", "megabytes")


class WorkerFigures:
    """Adds up one worker's exchanges.

    Args:
      counts_before: What the servers had counted of this worker's gradients
        before, that is in an earlier `fit` of the same process: its part of
        `strategy.gradient_counts()`; None for nothing.
      fit: Number of the call of `fit`; 0 if none is in common.
    """

    def __init__(self, counts_before=None, fit=0):
        self._fit = fit
        self.exchanges = 0
        self.steps = 0
        self._counts_before = {**_NO_COUNTS, **(counts_before or {})}
        self._staleness = collections.Counter()
        self._sums = dict.fromkeys(_SUMS, 0)

    def add(self, exchanges):
        """Takes in a list of `ExchangeRecord`."""
        self.exchanges += len(exchanges)
        self.steps += sum(e.local_steps for e in exchanges)
        self._staleness.update(e.staleness for e in exchanges)
        for name in _SUMS:
            self._sums[name] += sum(getattr(e, name) for e in exchanges)

    def report(self, seconds, bytes_between=0):
        """Returns this worker's part of the summary, as JSON can hold it.

        Args:
          seconds: How long this worker has trained.
          bytes_between: Received meanwhile, and in no exchange.
        """
        received = self._sums["bytes_received"] + bytes_between
        return {
            "fit": self._fit,
            "steps": self.steps,
            "exchanges": self.exchanges,
            "seconds": seconds,
            "staleness": sorted(self._staleness.items()),
            "counts_before": self._counts_before,
            **self._sums,
            "bytes_received": received,
        }


def summarize(reports, versions, counts=None, counts_before=None):
    """The cluster's figures.

    Args:
      reports: Dict of task name to `WorkerFigures.report`.
      versions: Updates applied by each server since training first began.
      counts: What the servers have counted, `strategy.gradient_counts()`.
        They know of what was not reported, too: by workers that died or
        left, or in an earlier life. If empty, the reports count.
      counts_before: The same from before this training, for workers without a
        report; None for nothing.

    Returns:
      A dict: `updates_applied`, `gradients_pushed`, `gradients_accepted`,
      `gradients_dropped` (ints), `staleness` (`mean`, `p95`, `max`),
      `steps_per_second` (sum over workers), `exchange_share` and `wait_share`
      (of the workers' time, 0 to 1), `waited_seconds` (sum over workers),
      `bytes_sent`, `bytes_received`, and `workers`, a list of dicts with
      `name`, `steps`, `seconds`, `steps_per_second`, `staleness_mean`,
      `exchange_share`, `wait_share`, `waited_seconds`, `bytes_sent`,
      `bytes_received` and the three counts of gradients. What a worker has
      pushed and not reported is part of its steps, its mean staleness (and the
      cluster's) and its counts, and of nothing else.
    """
    counts, counts_before = counts or {}, counts_before or {}
    staleness = collections.Counter()
    means = []
    # With local steps a push stands for several.
    steps_each = _ratio(_sum(reports, "steps"), _sum(reports, "exchanges")) or 1
    workers = []
    for name in sorted(reports.keys() | counts.keys()):
        report = reports.get(name, _NO_REPORT)
        own = collections.Counter(dict(report["staleness"]))
        staleness.update(own)
        before = report.get("counts_before", counts_before.get(name))
        gradients = _gradients(report, counts.get(name), before)
        steps, late = report["steps"], (_total(own), own.total())
        not_reported = gradients["pushed"] - report["exchanges"]
        if not_reported > 0:
            steps += round(steps_each * not_reported)
            late = gradients["staleness"], gradients["accepted"]
        means.append(late)
        seconds = report["seconds"]
        waited = report.get("wait_seconds", 0.0)
        workers.append(
            {
                "name": name,
                "steps": steps,
                "seconds": seconds,
                "steps_per_second": _ratio(report["steps"], seconds),
                "staleness_mean": _ratio(*late),
                "exchange_share": _ratio(
                    report.get("exchange_seconds", 0.0), seconds
                ),
                "wait_share": _ratio(waited, seconds),
                "waited_seconds": waited,
                "bytes_sent": report.get("bytes_sent", 0),
                "bytes_received": report.get("bytes_received", 0),
                **{f"gradients_{n}": gradients[n] for n in _GRADIENTS},
            }
        )
    total = sum(w["seconds"] for w in workers)
    return {
        "updates_applied": versions[0],
        **{
            f"gradients_{n}": sum(w[f"gradients_{n}"] for w in workers)
            for n in _GRADIENTS
        },
        "staleness": {
            "mean": _ratio(sum(m[0] for m in means), sum(m[1] for m in means)),
            "p95": _quantile(staleness, 0.95),
            "max": max(staleness, default=0),
        },
        "steps_per_second": sum(w["steps_per_second"] for w in workers),
        "exchange_share": _ratio(_sum(reports, "exchange_seconds"), total),
        "wait_share": _ratio(_sum(reports, "wait_seconds"), total),
        "waited_seconds": _sum(reports, "wait_seconds"),
        "bytes_sent": _sum(reports, "bytes_sent"),
        "bytes_received": _sum(reports, "bytes_received"),
        "workers": workers,
    }


def table(summary, is_local=False):
    """The summary as text for people.

    Args:
      summary: From `summarize`.
      is_local: Whether this process was alone: it exchanged with nobody.
    """
    staleness = summary["staleness"]
    lines = [
        f"Updates applied: {summary['updates_applied']}; gradients pushed: "
        f"{summary['gradients_pushed']}, dropped: "
        f"{summary['gradients_dropped']}.",
        f"Staleness: mean {staleness['mean']:.2f}, p95 {staleness['p95']}, "
        f"max {staleness['max']}.",
    ]
    hidden = () if summary["gradients_dropped"] else _OF_DROPPING
    if is_local:
        hidden += _OF_EXCHANGES
    else:
        lines += [
            f"Share of the workers' time: communication "
            f"{summary['exchange_share']:.1%}, waiting "
            f"{summary['wait_share']:.1%}.",
            f"Sent {tables.amount(summary['bytes_sent'] / 1e6)} MB, received "
            f"{tables.amount(summary['bytes_received'] / 1e6)} MB.",
        ]
    columns = [column for column in _COLUMNS if column[1] not in hidden]
    titles, keys, forms = zip(*columns, strict=True)
    rows = []
    for worker in summary["workers"]:
        # "worker 1", as `tfdist launch` calls it.
        task = re.sub(r"^/job:(\w+)/task:", r"\1 ", worker["name"])
        worker = {**worker, "name": task}
        both = worker["bytes_sent"] + worker["bytes_received"]
        worker["megabytes"] = tables.amount(both / 1e6)
        pairs = zip(keys, forms, strict=True)
        rows.append([form.format(worker[key]) for key, form in pairs])
    shown = tables.aligned(titles, rows, gap=1, ruled=False)
    return "\n".join([*lines, shown])


def _gradients(report, count, before):
    """The counts of one worker's gradients in this training, a dict.

    Args:
      report: Its `WorkerFigures.report`.
      count: What the servers have counted, or None.
      before: What they had counted before; None for nothing.
    """
    if count is None:
        pushed = report["exchanges"]
        accepted = report.get("accepted", pushed)
        return {
            "pushed": pushed,
            "accepted": accepted,
            "dropped": pushed - accepted,
        }
    before = before or _NO_COUNTS
    return {name: count[name] - before[name] for name in _NO_COUNTS}


def _ratio(part, whole):
    return part / whole if whole else 0.0


def _sum(reports, name):
    return sum(report.get(name, 0) for report in reports.values())


def _total(counts):
    return sum(value * n for value, n in counts.items())


def _quantile(counts, share):
    """Smallest value that at least `share` of all do not exceed."""
    total = sum(counts.values())
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= share * total:
            return value
    return 0
