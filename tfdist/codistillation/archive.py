"""Checkpoints as bytes: saved states that nothing has to be unpickled from.

A whole model is a `.keras` file, itself a ZIP archive, that has got the one
entry more that says what it is.
"""

import io
import pathlib
import tempfile
import zipfile

import keras
import numpy as np

from tfdist import saved_state
from tfdist.codistillation import quantization
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import UnusableCheckpointError

# Not the name of the release before, which had another layout.
_FORMAT = "tfdist-group-checkpoint"
_FIELDS = {
    "group": int,
    "number": int,
    "step": int,
    "time": float,
    "run": str,
    "initial": str,
}


def encode(checkpoint, *, dtype="float32", keras_file=None):
    """The archive of a checkpoint.

    Args:
      checkpoint: A `Checkpoint`.
      dtype: One of `quantization.DTYPES`: what weights are stored in.
      keras_file: Content of a `.keras` file with the weights, bytes, which
        then takes their place; or None.

    Returns:
      Bytes.
    """
    header = {field: getattr(checkpoint, field) for field in _FIELDS}
    arrays = {}
    if not keras_file:
        parts = [quantization.quantise(w, dtype) for w in checkpoint.weights]
        header["weights"] = [
            {"dtype": array.dtype.name, "parts": len(some)}
            for array, some in zip(checkpoint.weights, parts, strict=True)
        ]
        arrays = {
            _name(number, part): values
            for number, some in enumerate(parts)
            for part, values in enumerate(some)
        }
    buffer = io.BytesIO(keras_file or b"")
    state = saved_state.SavedState(header, arrays)
    saved_state.write(state, buffer, _FORMAT, "a" if keras_file else "w")
    return buffer.getvalue()


def decode(content):
    """The checkpoint that `encode` was given, its weights nearly.

    Args:
      content: Bytes.

    Returns:
      A `Checkpoint`. Where the archive is a `.keras` file, the `architecture`
      is its model.

    Raises:
      UnusableCheckpointError: They are damaged, or no checkpoint, or a model
        that Keras does not load.
    """
    try:
        state = saved_state.read(io.BytesIO(content), _FORMAT)
        header = state.header
        fields = {field: kind(header[field]) for field, kind in _FIELDS.items()}
        if "weights" in header:
            weights = tuple(
                quantization.restore(
                    [
                        state.arrays[_name(number, part)]
                        for part in range(described["parts"])
                    ],
                    np.dtype(described["dtype"]),
                )
                for number, described in enumerate(header["weights"])
            )
            return Checkpoint(**fields, weights=weights)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"its entry {damaged!r} is damaged")
    except Exception as error:  # Of all kinds: it may be anything.
        reason = str(error) or type(error).__name__
        raise UnusableCheckpointError(reason) from error
    model = _load(content)
    weights = weights_lib.snapshot(model)
    return Checkpoint(**fields, weights=weights, architecture=model)


def keras_file_of(model):
    """The content of the `.keras` file of a model, bytes."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "model.keras"
        model.save(path)
        return path.read_bytes()


def _load(content):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "model.keras"
        path.write_bytes(content)
        try:
            return keras.saving.load_model(path, compile=False, safe_mode=True)
        except Exception as error:  # Of all kinds: it is somebody's model.
            raise UnusableCheckpointError(
                f"Keras does not load its model: {type(error).__name__}: "
                f"{error}"
            ) from error


def _name(number, part):
    return f"weights/{number}.{part}"
