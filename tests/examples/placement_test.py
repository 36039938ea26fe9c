"""The example of layers on several devices trains."""

import pathlib
import re
import subprocess
import sys

FILE = pathlib.Path(__file__).parents[2] / "examples" / "place_layers.py"


def test_layers_go_where_it_is_told():
    done = subprocess.run(
        [
            sys.executable,
            str(FILE),
            "--placement=conv*=CPU:0,head=CPU:1",
            "--epochs=2",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(r"^head +Dense +CPU:1 +CPU:1", done.stdout, re.MULTILINE)
    accuracy = float(re.search(r"test accuracy: (.*)", done.stdout)[1])
    assert accuracy > 0.8
