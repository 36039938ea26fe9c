"""The example of layers on several devices trains."""

import pathlib
import re

import pytest

from tests.multi_process import scripts

pytestmark = pytest.mark.nightly

FILE = pathlib.Path(__file__).parents[2] / "examples" / "place_layers.py"


@pytest.mark.parametrize(
    "flag",
    [
        "--placement=conv*=CPU:0,head=CPU:1",
        # The model needs 3.6 MB on one device, and 2.1 MB on each of two.
        "--memory_limit_mb=2.5",
    ],
)
def test_layers_are_on_two_devices(tmp_path, flag):
    task = scripts.start(tmp_path, FILE, [flag, "--epochs=2"])
    assert task.wait(240) == 0, task.output()
    output = task.output()
    assert re.search(r"^conv_0 +Conv2D +CPU:0 +CPU:0", output, re.MULTILINE)
    assert re.search(r"^head +Dense +CPU:1 +CPU:1", output, re.MULTILINE)
    accuracy = float(re.search(r"test accuracy: (.*)", output)[1])
    assert accuracy > 0.8
