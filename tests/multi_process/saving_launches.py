"""Launches a program that saves on all of its workers, again and again.

    python -m tests.multi_process.saving_launches --launches=50

Each launch is a cluster of a server and three workers, which saves in all ways
that Keras has (`saving_tasks.train_and_save`). Prints what is wrong with the
files of each, then a table, then a line of JSON. Ends with 1 if a file was
damaged or not the chief's, or if a task failed.
"""

import collections
import json
import pathlib
import tempfile
import time

from absl import app
from absl import flags

from tests.multi_process import real_cluster
from tests.multi_process import saved_files

_LAUNCHES = flags.DEFINE_integer("launches", 50, "How often.", lower_bound=1)
_QUICK = flags.DEFINE_boolean("quick", False, "Three launches.")
_WORKERS = flags.DEFINE_integer("num_workers", 3, "Workers.", lower_bound=2)
_FAILED = "tasks end with 0"
# Of one launch, on a machine that has other things to do.
_SECONDS = 300.0


def main(argv):
    """Launches, and sums up."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {argv[1:]}")
    launches = 3 if _QUICK.value else _LAUNCHES.value
    began = time.monotonic()
    good = collections.Counter()
    bad = collections.Counter()
    all_good = 0
    with real_cluster.Zygote() as zygote:
        for number in range(launches):
            found = _launch(zygote)
            for way, problem in found.items():
                (bad if problem else good)[way] += 1
                if problem:
                    print(f"{number}: {way}: {problem}", flush=True)
            all_good += not any(found.values())
            print(f"{number + 1} launches, {all_good} good", flush=True)
    ways = sorted(good.keys() | bad.keys())
    width = max(map(len, ways))
    print(f"{'':{width}}  good   bad")
    for way in ways:
        print(f"{way:{width}}  {good[way]:4}  {bad[way]:4}")
    print(
        json.dumps(
            {
                "launches": launches,
                "good": all_good,
                "bad": dict(bad),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )
    return 0 if all_good == launches else 1


def _launch(zygote):
    with tempfile.TemporaryDirectory(prefix="tfdist-saving-") as name:
        directory = pathlib.Path(name)
        with real_cluster.ClusterUnderTest(
            zygote, directory, num_ps=1, num_workers=_WORKERS.value
        ) as cluster:
            cluster.start_servers()
            chief, *_ = cluster.start_workers("saving_tasks:train_and_save")
            try:
                cluster.finish(_SECONDS)
            except AssertionError as error:
                return {_FAILED: str(error)}
            report = chief.report()
        return {_FAILED: None, **saved_files.check(directory, report)}


if __name__ == "__main__":
    app.run(main)
