"""A file is there as a whole or not at all."""

import os

import pytest

from tfdist.saving import whole


def test_the_file_before_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("before")
    with whole.written(path) as draft:
        assert draft.endswith("model.keras")
        with open(draft, "w") as file:
            file.write("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    with pytest.raises(KeyboardInterrupt):
        with whole.written(path) as draft:
            with open(draft, "w") as file:
                file.write("half of")
            raise KeyboardInterrupt
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_what_a_link_names_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.keras"
    link.symlink_to(tmp_path / "there" / "model.keras")
    with whole.written(link) as draft:
        with open(draft, "w") as file:
            file.write("new")
    assert link.is_symlink()
    assert (tmp_path / "there" / "model.keras").read_text() == "new"


def test_what_is_no_local_file_is_written_as_ever(tmp_path):
    assert whole.can_be_written(tmp_path / "model.keras")
    assert not whole.can_be_written("gs://bucket/model.keras")
    assert not whole.can_be_written(tmp_path)
    assert not whole.can_be_written(os.devnull)
    assert not whole.can_be_written(tmp_path / "missing" / "model.keras")
