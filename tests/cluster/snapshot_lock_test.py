"""One process at a time keeps a server's snapshots in a directory."""

import fcntl
import logging
import os
import stat

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


def test_a_lock_that_its_holder_removes_meanwhile_is_none(
    tmp_path, monkeypatch
):
    """Else two servers that begin as a third one ends both had one."""
    directory = tmp_path / "ps-0-of-1"
    first = snapshot_lock.hold(directory, SERVER)
    flock, waits = fcntl.flock, []

    def flock_late(descriptor, operation):
        if not waits:
            waits.append(descriptor)
            snapshot_lock.remove(directory)
            os.close(first)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    second = snapshot_lock.hold(directory, SERVER)
    assert waits
    monkeypatch.setattr(snapshot_lock, "_MOST_SECONDS", 0.0)
    with pytest.raises(ClusterConfigError):
        snapshot_lock.hold(directory, SERVER)
    os.close(second)


def test_where_there_can_be_no_lock_servers_go_on_without_and_say_so(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "file").touch()
    assert snapshot_lock.hold(tmp_path / "file" / "ps", SERVER) is None

    def refuse(descriptor, operation):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        assert flags & os.O_ACCMODE == os.O_RDWR, "NFS needs that"
        assert not stat.S_ISDIR(os.fstat(descriptor).st_mode)
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING):
        assert snapshot_lock.hold(tmp_path / "ps", SERVER) is None
    assert "no locks here" in caplog.text
