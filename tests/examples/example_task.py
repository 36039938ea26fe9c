"""One task of a cluster that runs an example, in a forked process."""

import pathlib
import runpy
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(script, flags):
    """Runs a script of `examples/` as `python script flags` does.

    Args:
        script: its file's name.
        flags: list of strings.
    """
    path = str(EXAMPLES / script)
    sys.path[0] = str(EXAMPLES)
    sys.argv = [path, *flags]
    runpy.run_path(path, run_name="__main__")
