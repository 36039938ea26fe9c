"""One process at a time keeps a server's snapshots in a directory."""

import fcntl
import os

import pytest

from tfdist.cluster import ClusterConfigError
from tfdist.cluster import snapshot_lock

SERVER = "/job:ps/task:0"


def test_a_second_holder_is_refused_until_the_first_is_gone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(snapshot_lock, "_MOST_SECONDS", 0.0)
    directory = tmp_path / "kept" / "ps-0-of-1"
    first = snapshot_lock.hold(directory, SERVER)
    with pytest.raises(ClusterConfigError) as refused:
        snapshot_lock.hold(directory, SERVER)
    assert f"snapshot_dir='{tmp_path}/kept'" in str(refused.value)
    assert f"keeps the snapshots of {SERVER}" in str(refused.value)
    # As when its process ends.
    os.close(first)
    os.close(snapshot_lock.hold(directory, SERVER))


def test_where_there_can_be_no_lock_servers_go_on_without(
    tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    assert snapshot_lock.hold(tmp_path / "file" / "ps", SERVER) is None

    def refuse(descriptor, operation):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert snapshot_lock.hold(tmp_path / "ps", SERVER) is None
