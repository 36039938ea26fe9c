"""A checkpoint is there as a whole or not at all."""

import os
import signal

import ml_dtypes
import numpy as np

from tfdist.callbacks.checkpoint_files import CheckpointFiles
from tfdist.saved_state import SavedState


def _state(number):
    arrays = {
        "a/float": np.full([50, 2], number, np.float32),
        "a/bits": np.full([3], number, ml_dtypes.bfloat16),
        "count": np.array(number),
        "flag": np.array([True, False]),
    }
    return SavedState({"number": number}, arrays)


def _assert_is(found, number):
    assert found is not None
    assert found[0] == number
    state, expected = found[1], _state(number)
    assert state.header == expected.header
    assert list(state.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        assert state.arrays[name].dtype == array.dtype
        assert state.arrays[name].shape == array.shape
        assert np.array_equal(state.arrays[name], array)


def test_newest_is_read_and_old_ones_are_removed(tmp_path):
    files = CheckpointFiles(tmp_path, keep=2)
    assert files.newest() is None
    assert [files.write(_state(n)) for n in (1, 2, 3)] == [1, 2, 3]
    assert files.numbers() == [2, 3]
    _assert_is(files.newest(), 3)
    _assert_is(files.newest(2), 2)
    # It has been removed since it was told of.
    _assert_is(files.newest(1), 3)
    files.remove_all()
    assert not tmp_path.exists()


def test_a_file_that_takes_the_place_of_a_removed_one_has_no_end(tmp_path):
    files = CheckpointFiles(tmp_path, keep=2)
    number = files.write(_state(1))
    files.write_end(_state(2), number)
    assert files.end(number).header == {"number": 2}
    files.path(number).unlink()
    assert files.write(_state(3)) == number
    assert files.end(number) is None


def test_writer_that_is_killed_leaves_the_older_one(tmp_path, caplog):
    """Killed when all is written and nothing is sure to be on the disk."""
    files = CheckpointFiles(tmp_path, keep=2)
    files.write(_state(1))
    reached, report = os.pipe()
    pid = os.fork()
    if not pid:

        def stop(descriptor):
            del descriptor
            os.write(report, b".")
            signal.pause()

        os.fsync = stop
        files.write(_state(2))
        os._exit(1)
    assert os.read(reached, 1) == b"."
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    _assert_is(files.newest(), 1)
    # Not because a damaged one was passed over.
    assert not caplog.records
    files.remove_drafts()
    assert files.write(_state(2)) == 2
    _assert_is(files.newest(), 2)
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_file_is_passed_over_with_a_warning(tmp_path, caplog):
    files = CheckpointFiles(tmp_path, keep=3)
    for number in (1, 2, 3):
        files.write(_state(number))
    content = files.path(3).read_bytes()
    files.path(3).write_bytes(content[: len(content) // 2])
    flipped = bytearray(files.path(2).read_bytes())
    position = flipped.index(np.float32(2).tobytes() * 50)
    flipped[position] ^= 1
    files.path(2).write_bytes(flipped)
    _assert_is(files.newest(), 1)
    assert len(caplog.records) == 2
    assert "Bad CRC-32" in caplog.text
