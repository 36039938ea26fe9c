"""Trains without servers while workers are killed and stopped at random.

    python -m tests.chaos.without_servers --seed=1 --events=12

Each method trains undisturbed, and then with its share of the events under
`tfdist launch --max_restarts`: the same bits have to come out. Workers of
`peer_to_peer` and `gossip` go on without each other: all have to end with the
same bits, and those of `peer_to_peer` with accounts that fit together. Prints a
table and a line of JSON. Ends with 1 if a method has failed.
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from tests.chaos import trained_alone
from tests.chaos import trained_with_peers
from tfdist import tables

PEERS = ("peer_to_peer", "gossip")
METHODS = ("all_reduce", "averaging", "bmuf", "diloco", *PEERS)
# In seconds: within `WORKER_TIMEOUT`, and longer than it.
_STOPS = (1.0, 4.0 * trained_alone.WORKER_TIMEOUT)
_SECONDS = 900.0

_SEED = flags.DEFINE_integer("seed", None, "Of schedules. Default: the time.")
_EVENTS = flags.DEFINE_integer(
    "events", 12, "Events over all methods.", lower_bound=0
)
_METHOD = flags.DEFINE_multi_enum("method", METHODS, METHODS, "Methods.")
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 2, "Workers.", lower_bound=2)


def events_of(seed, method, number, num_workers):
    """The events of a method, a list; see `trained_alone`.

    No two in the same epoch, and none before there is a checkpoint: `number`
    is below that of the epochs.
    """
    choose = random.Random(f"{seed} {method}")
    whats = ["kill", "kill", *_STOPS]
    if method in PEERS:
        return [
            [choose.randrange(num_workers), choose.choice(whats)]
            for _ in range(number)
        ]
    epochs = choose.sample(range(1, trained_alone.EPOCHS), number)
    return [
        [
            epoch,
            choose.randrange(trained_alone.BATCHES),
            choose.randrange(num_workers),
            choose.choice(whats),
        ]
        for epoch in sorted(epochs)
    ]


def run(method, events):
    """Trains; returns what is printed, and whether it ended well."""
    flags_of_launch = [
        "--num_ps=0",
        f"--num_workers={_NUM_WORKERS.value}",
        f"--max_restarts={len(events) + 1}",
    ]
    program = pathlib.Path(trained_alone.__file__), method
    if method in PEERS:
        program = pathlib.Path(trained_with_peers.__file__), method
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as directory:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "tfdist", "launch"),
                *flags_of_launch,
                "--show=all",
                *(*program, directory, json.dumps(events)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        happened = len(list(pathlib.Path(directory).glob("event-*")))
    return ended.stdout, ended.returncode == 0 and happened == len(events)


def disagreements(output):
    """Pairs of workers whose accounts of updates differ, a list of texts.

    Args:
        output: Of `trained_with_peers`, of all workers.
    """
    found = re.findall(r"counts: (\{.*\})", output)
    counts = {one["name"]: one for one in map(json.loads, found)}
    wrong = []
    for me, mine in counts.items():
        for other in set(counts) - {me}:
            theirs = counts[other]
            sent = theirs["before"][me] + theirs["delivered"][me]
            came = mine["fetched"][other] + mine["applied"][other]
            if not sent == came == theirs["sent"] or mine["missed"][other]:
                wrong.append(
                    f"{other} to {me}: {theirs['sent']}, {sent}, {came}"
                )
    return wrong


def main(argv):
    """Runs all that is asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {argv[1:]}")
    seed = _SEED.value if _SEED.value is not None else int(time.time())
    print(f"--seed={seed}", flush=True)
    rows, failed = [], []
    for number, method in enumerate(_METHOD.value):
        share = _EVENTS.value * (number + 1) // len(_METHOD.value)
        share -= _EVENTS.value * number // len(_METHOD.value)
        events = events_of(seed, method, share, _NUM_WORKERS.value)
        print(f"== {method}: {events}", flush=True)
        results = []
        began = time.monotonic()
        for those in [events] if method in PEERS else ([], events):
            output, is_well = run(method, those)
            results.append(re.findall("result: ([0-9a-f]+)", output))
            if not is_well:
                results[-1] = ["failed"]
                print(output, flush=True)
        restarts = len(
            re.findall(r"; (started again|restart \d+ of \d+) in", output)
        )
        if method in PEERS:
            wrong = disagreements(output)
            is_same = (
                len(results[0]) == _NUM_WORKERS.value
                and len(set(results[0])) == 1
                and not wrong
            )
            print(*wrong, sep="\n", end="", flush=True)
        else:
            is_same = results[0] == results[1] != ["failed"]
        if not is_same:
            print(output, flush=True)
            failed.append(method)
        seconds = f"{time.monotonic() - began:.0f}"
        bits = "the same" if is_same else "OTHERS"
        rows.append([method, str(share), str(restarts), seconds, bits])
    titles = ["method", "events", "restarts", "seconds", "bits"]
    print(tables.aligned(titles, rows))
    print(json.dumps({"seed": seed, "failed": failed, "rows": rows}))
    return 1 if failed else 0


if __name__ == "__main__":
    app.run(main)
