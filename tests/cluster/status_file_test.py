"""What a launched worker tells the launcher comes through its file."""

import functools
import threading
import types

from tfdist.cluster import fit_progress
from tfdist.cluster import status_file
from tfdist.cluster import step_figures


def test_what_is_written_is_read(tmp_path):
    path = str(tmp_path / "worker-0")
    word = fit_progress.Word(reached=1, epoch=3, batch=5, size=9)
    assert status_file.read(path) is None
    assert status_file._write(path, word)
    figures, told, written = status_file.read(path)
    assert isinstance(figures, step_figures.StepFigures)
    assert told == word
    assert written == (tmp_path / "worker-0").stat().st_mtime
    (tmp_path / "worker-0").write_text("{")
    assert status_file.read(path) is None


def test_two_strategies_share_one_file(tmp_path, monkeypatch):
    """Two threads would take each other's draft away."""
    path = str(tmp_path / "worker-0")
    monkeypatch.setenv("TFDIST_STATUS_FILE", path)
    monkeypatch.setattr(status_file, "_words", {})
    started = []
    monkeypatch.setattr(
        status_file, "_start", functools.cache(lambda *how: started.append(how))
    )
    membership = types.SimpleNamespace(
        tell_figures=lambda meter: None, told=lambda: "its word"
    )
    journal = types.SimpleNamespace()
    monkeypatch.setattr(
        status_file, "_meter", lambda: types.SimpleNamespace(add=lambda _: None)
    )
    for one in (membership, None):
        status_file.watch(journal, one)
    assert started == [(path,)]
    assert status_file._words[path]() == "its word"


def test_a_disk_without_room_does_not_stop_the_training(tmp_path):
    path = str(tmp_path / "missing" / "worker-0")
    assert not status_file._write(path, fit_progress.Word())


def test_figures_are_written_again_when_the_disk_has_room(
    tmp_path, monkeypatch, caplog
):
    path = tmp_path / "missing" / "worker-0"
    write, written, went_well, ends = (
        status_file._write,
        threading.Event(),
        [],
        [],
    )

    def note(*args, **kwargs):
        went_well.append(write(*args, **kwargs))
        if len(went_well) == 2:
            path.parent.mkdir()
        if went_well[-1]:
            written.set()
        return went_well[-1]

    monkeypatch.setattr(status_file, "_write", note)
    monkeypatch.setattr(status_file, "_SECONDS", 0.01)
    monkeypatch.setattr(status_file.atexit, "register", ends.append)
    status_file._start.__wrapped__(str(path))
    assert written.wait(60.0)
    ends[0]()
    assert went_well[:3] == [False, False, True]
    assert status_file.read(str(path)) is not None
    assert caplog.text.count("The launcher gets no figures") == 1
