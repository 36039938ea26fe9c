"""The example of layers on several devices trains."""

import pathlib
import re

import pytest

from tests.multi_process import scripts

pytestmark = pytest.mark.nightly

FILE = pathlib.Path(__file__).parents[2] / "examples" / "place_layers.py"


def test_layers_go_where_it_is_told(tmp_path):
    flags = ["--placement=conv*=CPU:0,head=CPU:1", "--epochs=2"]
    task = scripts.start(tmp_path, FILE, flags)
    assert task.wait(240) == 0, task.output()
    output = task.output()
    assert re.search(r"^head +Dense +CPU:1 +CPU:1", output, re.MULTILINE)
    accuracy = float(re.search(r"test accuracy: (.*)", output)[1])
    assert accuracy > 0.8
