"""A file is there as a whole or not at all."""

import os
import subprocess
import sys

import pytest

from tfdist.saving import atomic_write


def test_the_file_before_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("before")
    with atomic_write.written(path, "me") as draft:
        assert draft.endswith("model.keras")
        with open(draft, "w") as file:
            file.write("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    with pytest.raises(KeyboardInterrupt):
        with atomic_write.written(path, "me") as draft:
            with open(draft, "w") as file:
                file.write("half of")
            raise KeyboardInterrupt
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["model.keras"]


_PROGRAM = """
import sys
from tfdist.saving import atomic_write
with atomic_write.written(sys.argv[1], "me") as draft:
    file = open(draft, "w")
    file.write(sys.argv[2])
    file.flush()
    if sys.argv[2] == "half":
        print("in the middle", flush=True)
        sys.stdin.read()
"""


def test_kill_9_leaves_the_file_before(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("before")
    path.chmod(0o600)

    def start(content):
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, path, content],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    with start("half") as process:
        assert process.stdout.readline()
        process.kill()
    assert path.read_text() == "before"
    # What it has left does not stay for good.
    assert len(os.listdir(tmp_path)) == 2
    with start("after") as process:
        assert process.wait(60) == 0
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["model.keras"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_a_link_names_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.keras"
    link.symlink_to(tmp_path / "there" / "model.keras")
    with atomic_write.written(link, "me") as draft:
        with open(draft, "w") as file:
            file.write("new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "model.keras").read_text() == "new"


def test_what_is_no_local_file_is_written_as_ever(tmp_path):
    assert atomic_write.can_be_written(tmp_path / "model.keras")
    assert not atomic_write.can_be_written("gs://bucket/model.keras")
    assert not atomic_write.can_be_written(tmp_path)
    assert not atomic_write.can_be_written(os.devnull)
    assert not atomic_write.can_be_written(tmp_path / "missing" / "model.keras")
