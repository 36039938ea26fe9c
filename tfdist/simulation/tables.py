"""Figures of simulated runs as text for a person."""

import textwrap

from tfdist.tables import NONE
from tfdist.tables import aligned
from tfdist.tables import amount
from tfdist.tables import number
from tfdist.tables import percent


def of_comparison(comparison):
    """The two tables of a `Comparison`."""
    rows = comparison.rows()
    metric = comparison.metric
    at_the_edge = comparison.at_the_edge()
    better = "less" if comparison.smaller_is_better else "more"
    learned = aligned(
        [
            "method",
            "workers",
            "rate",
            f"final {metric}",
            "best",
            "mean over epochs",
            f"at {amount(comparison.at_seconds)} s",
            "diverged",
        ],
        [
            [
                row["method"],
                str(row["num_workers"]),
                _rate(row["learning_rate"])
                + "*" * ((row["method"], row["num_workers"]) in at_the_edge),
                _with_spread(row),
                number(row["best_mean"]),
                number(row["mean_over_epochs"]),
                number(row["mean_at_seconds"]),
                f"{row['diverged']} of {row['seeds']}",
            ]
            for row in rows
        ],
    )
    reached = aligned(
        ["method", "workers", "epochs", "updates", "seconds", "speed-up"],
        [
            [
                row["method"],
                str(row["num_workers"]),
                number(row["epochs_to_target"], 2),
                amount(row["updates_to_target"]),
                amount(row["seconds_to_target"]),
                number(row["speed_up_to_target"], 2),
            ]
            for row in rows
        ],
    )
    taken = aligned(
        [
            "method",
            "workers",
            "seconds",
            "examples/s",
            "speed-up",
            "staleness",
            "staleness p95",
            "dropped",
            "GB",
            "compute",
        ],
        [
            [
                row["method"],
                str(row["num_workers"]),
                amount(row["seconds"]),
                amount(row["examples_per_second"]),
                number(row["speed_up"], 2),
                number(row["staleness_mean"], 2),
                number(row["staleness_p95"], 1),
                percent(row["dropped"]),
                amount(row["gigabytes"]),
                percent(row["utilization"]),
            ]
            for row in rows
        ],
    )
    notes = ""
    if added := comparison.added_rates:
        rates = sorted({rate for some in added.values() for rate in some})
        most = max(map(len, added.values()))
        notes = _paragraph(
            f"{len(added)} of {len(rows)} did best at the edge of the given "
            f"learning rates, so up to {most} more were tried for each: "
            f"{', '.join(map(_rate, rates))}."
        )
    if at_the_edge:
        notes += _paragraph(
            f"* {len(at_the_edge)} of {len(rows)} did best with the least or "
            "the greatest learning rate that was tried: a better one may lie "
            "beyond it. Widen --learning_rates (learning_rates=), or raise "
            "--extra_rates (extra_rates=), before you compare these."
        )
    return (
        f"What is learned: {metric} on the validation data, {better} is "
        f"better, target {number(comparison.target)}\n"
        f"(all seconds are virtual; rate: the best of those tried)\n\n"
        f"{learned}{notes}\n\nUntil {metric} {number(comparison.target)} is "
        f"reached\n\n{reached}\n\nWhat it takes\n\n{taken}"
    ).replace("train_loss on the validation data", "train_loss")


def of_history(history):
    """The figures of a `History`, and its evaluations."""
    some = history.summary()
    figures = aligned(
        [f"{history.method}, {history.num_workers} workers", ""],
        [
            ["virtual seconds", amount(some["seconds"])],
            ["updates", str(some["updates"])],
            ["gradients", str(some["gradients"])],
            ["  of these dropped", str(some["dropped"])],
            ["examples per second", amount(some["examples_per_second"])],
            ["staleness mean", number(some["staleness_mean"], 2)],
            ["staleness p95", number(some["staleness_p95"], 1)],
            ["staleness max", str(some["staleness_max"])],
            ["compute, share of time", percent(some["utilization"])],
            ["waiting per gradient, s", amount(some["waited_mean"])],
            ["GB", amount(some["gigabytes"])],
            *_of_links(some),
            *_of_evaluations(some),
            ["diverged", "yes" if some["diverged"] else "no"],
        ],
    )
    names = list(dict.fromkeys(k for row in history.evaluations for k in row))
    metrics = [
        name for name in names if name not in ("seconds", "epoch", "updates")
    ]
    evaluations = aligned(
        ["epoch", "seconds", "updates", *metrics],
        [
            [
                number(row["epoch"], 2),
                amount(row["seconds"]),
                str(row["updates"]),
                *(number(row.get(metric), 4) for metric in metrics),
            ]
            for row in history.evaluations
        ],
    )
    return f"{figures}\n\n{evaluations}"


def _of_links(some):
    """Rows that only runs with an exchange have."""
    if some["largest_link_bytes"] is None:
        return []
    return [
        ["bytes per update", amount(some["update_bytes"])],
        ["busiest link, GB", amount(some["largest_link_bytes"] / 1e9)],
    ]


def _of_evaluations(some):
    """Rows that only Sandblaster has."""
    if "portions" not in some:
        return []
    portions = some["portions"]
    median = some["seconds_per_data_evaluation"]
    return [
        ["evaluations over all data", str(some["data_evaluations"])],
        ["  seconds of one, median", amount(median)],
        ["portions of a worker, least", str(min(portions))],
        ["portions of a worker, most", str(max(portions))],
    ]


def _paragraph(text):
    return "\n\n" + textwrap.fill(text, 79)


def _with_spread(row):
    text = number(row["final_mean"])
    if row["seeds"] > 1 and text != NONE:
        text += f" +- {number(row['final_std'])}"
    return text


def _rate(rate):
    return "own" if rate is None else f"{rate:g}"
