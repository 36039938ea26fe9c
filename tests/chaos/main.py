"""Trains while processes are killed, stopped and started again at random.

    python -m tests.chaos.main --seed=1 --events=200 --strategy=all

Prints each event, then a table, then a line of JSON. With several strategies
each gets its share of the events, on a cluster of its own. Ends with 1 if one
of them has failed.
"""

import dataclasses
import json
import pathlib
import tempfile
import time

from absl import app
from absl import flags

from tests.chaos import driver
from tests.multi_process import real_cluster
from tests.multi_process import recovery_tasks

_ALL = "all"
_COLUMNS = (
    "strategy",
    "events",
    "seconds",
    "slowest",
    "pushed",
    "applied",
    "dropped",
    "lost",
    "recoveries",
    "loss",
    "server_mib",
)

_SEED = flags.DEFINE_integer("seed", None, "Of schedules. Default: the time.")
_EVENTS = flags.DEFINE_integer(
    "events", 200, "Events over all strategies.", lower_bound=0
)
_STRATEGY = flags.DEFINE_list(
    "strategy",
    [_ALL],
    f"`all`, or some of {','.join(recovery_tasks.STRATEGIES)}.",
)
_NUM_PS = flags.DEFINE_integer("num_ps", 2, "Servers.", lower_bound=1)
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 3, "Workers.", lower_bound=2)
_SNAPSHOT_EVERY = flags.DEFINE_float(
    "snapshot_every", 1.0, "Seconds between snapshots; 0: none.", 0.0
)


@flags.validator(_STRATEGY, "must name strategies of recovery_tasks")
def _are_known(names):
    return names and set(names) <= {_ALL, *recovery_tasks.STRATEGIES}


def main(argv):
    """Runs all that is asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {argv[1:]}")
    names = _STRATEGY.value
    if _ALL in names:
        names = list(recovery_tasks.STRATEGIES)
    seed = _SEED.value if _SEED.value is not None else int(time.time())
    print(f"--seed={seed}", flush=True)
    outcomes, failed = [], []
    with real_cluster.Zygote() as zygote:
        for number, name in enumerate(names):
            share = _EVENTS.value * (number + 1) // len(names)
            share -= _EVENTS.value * number // len(names)
            try:
                outcomes.append(_run(zygote, name, seed, share))
            except driver.ChaosError as error:
                print(error, flush=True)
                failed.append(name)
    _print_table(outcomes)
    print(
        json.dumps(
            {
                "seed": seed,
                "failed": failed,
                "outcomes": [dataclasses.asdict(one) for one in outcomes],
            }
        )
    )
    return 1 if failed else 0


def _run(zygote, strategy, seed, num_events):
    print(f"== {strategy}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as directory:
        with real_cluster.ClusterUnderTest(
            zygote,
            pathlib.Path(directory),
            num_ps=_NUM_PS.value,
            num_workers=_NUM_WORKERS.value,
        ) as cluster:
            chaos = driver.Chaos(
                cluster,
                strategy,
                num_ps=_NUM_PS.value,
                snapshot_every=_SNAPSHOT_EVERY.value,
                tell=lambda line: print(line, flush=True),
            )
            return chaos.run(seed, num_events)


def _print_table(outcomes):
    rows = [_COLUMNS, *(map(_text, _cells(one)) for one in outcomes)]
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)))


def _cells(outcome):
    return [getattr(outcome, column) for column in _COLUMNS]


def _text(value):
    if isinstance(value, tuple):
        return " > ".join(f"{number:.3g}" for number in value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    app.run(main)
