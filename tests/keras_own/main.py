"""Runs Keras's own tests inside a strategy's scope, on a real server.

    python -m tests.keras_own.main --strategy=all

The wheel of Keras brings its tests. Each strategy and folder gets a server and
a worker, which runs the tests with pytest; each enters the strategy's scope
at the end of its `setUp`. `exceptions.py` lists what is not to pass, each with
its reason. Ends with 1 if something else fails, or if an exception passes.
"""

import subprocess
import sys

from absl import app
from absl import flags

from tests.keras_own import task

_ALL = "all"
_STRATEGY = flags.DEFINE_list(
    "strategy", [_ALL], f"`all`, or some of {','.join(task.STRATEGIES)}."
)
_TESTS = flags.DEFINE_list(
    "tests",
    ["trainers", "callbacks", "models", "optimizers"],
    "Folders or files below keras/src.",
)
_K = flags.DEFINE_string("k", "", "Only tests with such names, as in pytest.")


@flags.validator(_STRATEGY, "must name strategies of tests/keras_own/task.py")
def _are_known(names):
    return names and set(names) <= {_ALL, *task.STRATEGIES}


def main(argv):
    """Runs all that is asked for."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {argv[1:]}")
    names = _STRATEGY.value
    if _ALL in names:
        names = list(task.STRATEGIES)
    failed = []
    for name in names:
        for tests in _TESTS.value:
            print(f"== {name}: {tests}", flush=True)
            command = [sys.executable, "-m", "tfdist", "launch"]
            command += ["--num_ps=1", "--num_workers=1", "--color=never"]
            command += ["--module=tests.keras_own.task", "--"]
            command += [name, tests, _K.value]
            if subprocess.run(command).returncode:
                failed.append(f"{name}: {tests}")
    print("failed:", ", ".join(failed) or "nothing")
    return bool(failed)


if __name__ == "__main__":
    app.run(main)
