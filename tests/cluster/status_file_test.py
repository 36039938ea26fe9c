"""What a launched worker tells the launcher comes through its file."""

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


def test_a_disk_without_room_does_not_stop_the_training(tmp_path):
    path = str(tmp_path / "missing" / "worker-0")
    assert not status_file._write(path, fit_progress.Word())
