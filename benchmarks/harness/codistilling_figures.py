"""Figures of runs with and without codistillation, and their tables."""

import dataclasses
import itertools
import math
import statistics

import numpy as np

from tfdist import tables


def falling(run, steps):
    """The same with a learning rate that falls to 0 within `steps`."""
    return dataclasses.replace(
        run, row=_falling_name(run.row, steps), steps=steps, decaying=True
    )


def _falling_name(row, steps):
    return f"{row}, falling in {steps}"


def least_loss(outcome):
    """The least validation loss, of the groups' mean."""
    return float(np.nanmin(outcome.losses.mean(axis=1)))


def steps_to(outcome, target):
    """Steps until the groups' mean loss is at most `target`, None if never."""
    return _first(outcome.steps, outcome.losses.mean(axis=1), target)


def best_candidates(tuned, target):
    """Of each row, what takes the fewest steps to the target.

    Or, where nothing reaches it, comes closest.

    Args:
      tuned: List of `(Run, Outcome)`; those of one row compete.
      target: A loss.

    Returns:
      Name of the row -> `(Run, Outcome)`.
    """

    def merit(pair):
        steps = steps_to(pair[1], target)
        return (1, least_loss(pair[1])) if steps is None else (0, steps)

    rows = {}
    for pair in tuned:
        rows.setdefault(pair[0].row, []).append(pair)
    return {row: min(pairs, key=merit) for row, pairs in rows.items()}


def tuning(tuned, best, targets):
    """The figures of the tuning, a dict for JSON; see `best_candidates`."""
    return {
        row: {
            "learning_rate": run.learning_rate,
            "label_smoothing": run.label_smoothing,
            "least_loss": round(least_loss(outcome), 4),
            "steps_to": {str(t): steps_to(outcome, t) for t in targets},
            "candidates": [
                {
                    "learning_rate": other.learning_rate,
                    "label_smoothing": other.label_smoothing,
                    "steps": steps_to(found, targets[0]),
                    "least_loss": round(least_loss(found), 4),
                }
                for other, found in tuned
                if other.row == row
            ],
        }
        for row, (run, outcome) in best.items()
    }


def _first(steps, losses, target):
    reached = np.flatnonzero(losses <= target)
    return int(steps[reached[0]]) if reached.size else None


def summarize(outcomes, targets, compared, decaying):
    """The figures of all rows.

    Args:
      outcomes: Name of a row -> list of `Outcome`, one per seed.
      targets: Losses, the lowest first.
      compared: "2M", "M" and "codistilling" -> name of the row of one group of
        all workers, of one group of half as many on all data, and of two
        groups that teach each other.
      decaying: Steps of the same rows with a rate that falls.

    Returns:
      A dict, for JSON.
    """
    rows = {
        row: {**_losses(values, targets), "churn": _churns(values, "models")}
        for row, values in outcomes.items()
    }
    for row, values in outcomes.items():
        if row.endswith("apart"):
            rows[row]["ensemble"] = {
                **_losses(values, targets, ensemble=True),
                "churn": _churns(values, "ensemble"),
            }
    steps = {
        "constant": {
            which: rows[row]["steps_to"] for which, row in compared.items()
        }
    }
    if decaying:
        steps["falling"] = {
            which: _fewest([rows[_falling_name(row, s)] for s in decaying])
            for which, row in compared.items()
        }
    return {
        "rows": rows,
        "ratio_of_steps": {
            f"{rate} rate, to one group of {single}": {
                str(t): _ratio(
                    found["codistilling"][str(t)], found[single][str(t)]
                )
                for t in targets
            }
            for rate, found in steps.items()
            for single in ("2M", "M")
        },
        "churn_reduction": {
            name: {
                when: _reduction(
                    rows[before]["churn"][when], rows[after]["churn"][when]
                )
                for when in ("least_loss", "target")
            }
            for name, before, after in [
                ("constant rate", compared["2M"], compared["codistilling"]),
                *(
                    (
                        _falling_name("rate", s),
                        _falling_name(compared["2M"], s),
                        _falling_name(compared["codistilling"], s),
                    )
                    for s in decaying
                ),
            ]
        },
    }


def _losses(outcomes, targets, ensemble=False):
    """Least losses, and steps to each target, over seeds."""
    curves = [
        (o.steps, o.ensemble if ensemble else o.losses.mean(axis=1))
        for o in outcomes
    ]
    least = sorted(float(np.nanmin(losses)) for _, losses in curves)
    return {
        "least_loss": _spread(least, 4),
        "last_loss": _spread([float(c[-1]) for _, c in curves], 4),
        "steps_to": {
            str(target): _steps([_first(s, c, target) for s, c in curves])
            for target in targets
        },
    }


def _spread(values, digits):
    return {
        "median": round(statistics.median(values), digits),
        "range": [round(min(values), digits), round(max(values), digits)],
    }


def _steps(values):
    """Median and range; None is of a run that never reached it."""
    known = sorted(math.inf if v is None else v for v in values)

    def finite(value):
        return None if math.isinf(value) else value

    return {
        # Of two, the greater: half of a run is none.
        "median": finite(known[len(known) // 2]),
        "range": [finite(known[0]), finite(known[-1])],
    }


def _ratio(ours, theirs):
    """Of medians, None where one is not known."""
    if ours["median"] is None or theirs["median"] is None:
        return None
    return round(ours["median"] / theirs["median"], 3)


def _fewest(rows):
    """Of several schedules, that with which each target is reached first."""
    return {
        target: min(
            (row["steps_to"][target] for row in rows),
            key=lambda steps: steps["median"] or math.inf,
        )
        for target in rows[0]["steps_to"]
    }


def _churns(outcomes, of):
    """Churn between all pairs of seeds, at both moments."""
    moments = {"least_loss": [o.best for o in outcomes]}
    moments["target"] = [o.at_target for o in outcomes]
    return {
        when: _churn([p for p in predictions if p is not None], of)
        for when, predictions in moments.items()
    }


def _churn(predictions, of):
    """Churn of one model of each run, or of its groups' mean."""
    of_each = [
        p.mean(axis=0) if of == "ensemble" else p[0] for p in predictions
    ]
    pairs = list(itertools.combinations(of_each, 2))
    if not pairs:
        return None
    distances = [float(np.abs(a - b).sum(axis=-1).mean()) / 2 for a, b in pairs]
    differing = [
        float((a.argmax(axis=-1) != b.argmax(axis=-1)).mean()) for a, b in pairs
    ]
    return {
        "total_variation": _spread(distances, 4),
        "argmax_differs": _spread(differing, 4),
    }


def _reduction(before, after):
    """The share by which the median of each measure of churn fell."""
    if before is None or after is None:
        return None
    return {
        name: round(1 - after[name]["median"] / before[name]["median"], 3)
        for name in before
    }


def show(task, figures, seeds, aim_ratio, aim_churn):
    """Prints the tables of one task."""
    targets = [
        f"{float(target):.3f}"
        for target in next(iter(figures["tuning"].values()))["steps_to"]
    ]
    print(f"\n{task}: tuning, one seed: steps to a loss of")
    rows = [
        [
            row,
            str(found["learning_rate"]),
            f"{found['least_loss']:.3f}",
            *map(_shown, found["steps_to"].values()),
        ]
        for row, found in figures["tuning"].items()
    ]
    titles = ["groups x workers", "rate", "least", *targets]
    print(tables.aligned(titles, rows))
    print(f"\n{task}: medians of {seeds} seeds: steps to a loss of")
    rows = []
    for row, found in figures["rows"].items():
        rows.append(_row(row, found))
        if "ensemble" in found:
            rows.append(_row("  their ensemble", found["ensemble"]))
    titles = ["groups x workers", "least", *targets, "churn", "argmax"]
    print(tables.aligned(titles, rows))
    print("(churn where the loss is least)\n")
    rows = [
        [name, *map(_shown, ratios.values())]
        for name, ratios in figures["ratio_of_steps"].items()
    ]
    title = f"steps of two codistilling groups, a share (aim: {aim_ratio})"
    print(tables.aligned([title, *targets], rows))
    for name, moments in figures["churn_reduction"].items():
        for when, found in moments.items():
            if found is not None:
                print(
                    f"{name}, {when.replace('_', ' ')}: churn falls by "
                    f"{found['total_variation']:.0%} (aim: {aim_churn:.0%}), "
                    f"changes of the class by {found['argmax_differs']:.0%}"
                )


def _row(name, found):
    churn = found["churn"]["least_loss"]
    return [
        name,
        f"{found['least_loss']['median']:.3f}",
        *(_shown(steps["median"]) for steps in found["steps_to"].values()),
        f"{churn['total_variation']['median']:.3f}",
        f"{churn['argmax_differs']['median']:.3f}",
    ]


def _shown(value):
    return "-" if value is None else str(value)
