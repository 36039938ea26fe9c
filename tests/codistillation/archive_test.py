"""Checkpoints in a file: as they were, or refused."""

import dataclasses
import io
import json
import pathlib
import pickle
import zipfile

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
import numpy as np
import pytest

from tests import laws
from tests.codistillation.checkpoints import WEIGHTS
from tests.codistillation.checkpoints import assert_same
from tests.codistillation.checkpoints import own
from tests.codistillation.scripted_exchange import checkpoint
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import archive
from tfdist.codistillation import quantization

CONTENT = archive.encode(own())


@hypothesis.given(
    arrays=st.lists(
        st_numpy.arrays(
            st.sampled_from(["float32", "float64", "int32", "bool"]),
            st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=4),
        ),
        max_size=4,
    ),
    step=st.integers(0, 2**40),
)
@laws.settings(max_examples=30)
def test_what_is_written_is_read(arrays, step):
    written = checkpoint(arrays, group=2, number=5, step=step, initial="i")
    read = archive.decode(archive.encode(written))
    assert_same(read.weights, written.weights)
    assert dataclasses.replace(read, weights=()) == dataclasses.replace(
        written, weights=()
    )


@hypothesis.given(
    array=st_numpy.arrays(
        "float32",
        st_numpy.array_shapes(min_dims=2, max_dims=3, max_side=5),
        elements=st.floats(-(2.0**90), 2.0**90, width=32),
    )
)
@laws.settings(max_examples=30)
def test_quantised_weights_are_as_near_as_is_said(array):
    eight = quantization.restore(
        quantization.quantise(array, "int8"), "float32"
    )
    largest = np.abs(array).max(axis=tuple(range(array.ndim - 1)))
    # Half a step, and what the rounding of the scale itself makes of it.
    bound = largest / 127 * 0.5 * (1 + 1e-4) + 1e-37
    assert (np.abs(eight - array) <= bound).all()
    half = quantization.restore(
        quantization.quantise(array, "float16"), "float32"
    )
    if np.abs(array).max() < 65504:
        np.testing.assert_allclose(half, array, rtol=2**-11, atol=2**-25)
    else:
        np.testing.assert_array_equal(half, array)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_only_matrices_are_quantised(dtype):
    _, vector, scalar = archive.decode(
        archive.encode(own(), dtype=dtype)
    ).weights
    assert_same([vector, scalar], WEIGHTS[1:])


def test_bytes_on_the_way():
    matrix = (np.ones((500, 500), "float32"),)
    sizes = {
        dtype: len(archive.encode(own(weights=matrix), dtype=dtype))
        for dtype in quantization.DTYPES
    }
    assert sizes["float32"] < 500 * 500 * 4 + 1000
    assert sizes["float16"] < 500 * 500 * 2 + 1000
    assert sizes["int8"] < 500 * 500 + 500 * 4 + 1500


@hypothesis.given(data=st.data())
@laws.settings(max_examples=60)
def test_damage_is_never_taken_for_weights(data):
    content = CONTENT
    damage = data.draw(st.sampled_from(["cut", "flipped", "foreign"]))
    if damage == "cut":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif damage == "flipped":
        position = data.draw(st.integers(0, len(content) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        content = bytearray(content)
        content[position] ^= bit
        content = bytes(content)
    else:
        content = data.draw(st.binary(max_size=100))
    try:
        read = archive.decode(content)
    except UnusableCheckpointError:
        return
    # Bits that mean nothing (a date, say) may differ; weights may not.
    assert damage == "flipped"
    assert_same(read.weights, WEIGHTS)


def zipped(**entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries.items():
            file.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def test_nothing_is_ever_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "exploded",))

    array = io.BytesIO()
    np.save(array, np.array([Bomb()], dtype=object), allow_pickle=True)
    entries = dict.fromkeys(("weights/0.0.npy",), array.getvalue())
    content = archive.encode(own(weights=WEIGHTS[:1]))
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        header = file.read("tfdist.json")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("tfdist.json", header)
        for name, value in entries.items():
            file.writestr(name, value)
    with pytest.raises(UnusableCheckpointError, match="allow_pickle"):
        archive.decode(buffer.getvalue())
    with pytest.raises(UnusableCheckpointError):
        archive.decode(pickle.dumps(Bomb()))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "theirs"}, "format is 'theirs'"),
        ({"version": 2}, "version 2 of the format, 1 is known"),
        ({"step": "many"}, "many"),
        ({"step": float("inf")}, "infinity"),
    ],
)
def test_other_formats_are_not_read(change, message):
    with zipfile.ZipFile(io.BytesIO(archive.encode(own()))) as file:
        header = json.loads(file.read("tfdist.json"))
    fields = header["header"] if "step" in change else header
    fields.update(change)
    header["dtypes"] = {}
    content = zipped(tfdist__json=json.dumps(header))
    with pytest.raises(UnusableCheckpointError, match=message):
        archive.decode(content)


def test_weights_with_something_behind_them_are_not_read():
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(CONTENT)) as before,
        zipfile.ZipFile(buffer, "w") as after,
    ):
        for name in before.namelist():
            more = b"?" if name == "weights/1.0.npy" else b""
            after.writestr(name, before.read(name) + more)
    with pytest.raises(UnusableCheckpointError, match="1.0' is too long"):
        archive.decode(buffer.getvalue())
