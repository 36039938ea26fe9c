import textwrap

import pytest

_PREAMBLE = """\
import json, os, pathlib, signal, subprocess, sys, time
place = json.loads(os.environ["TF_CONFIG"])
job, index = place["task"]["type"], place["task"]["index"]
group = place.get("codistillation", {}).get("group")
tmp = pathlib.Path(__file__).parent
def wait_for(name):
    while not (tmp / name).exists():
        time.sleep(0.01)
def forever():
    while True:
        time.sleep(100)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script that knows its place and how to wait."""

    def write(body):
        path = tmp_path / "script.py"
        path.write_text(_PREAMBLE + textwrap.dedent(body))
        return path

    return write
