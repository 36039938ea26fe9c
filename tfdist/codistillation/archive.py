"""Checkpoints as bytes: ZIP archives that nothing has to be unpickled from.

Each holds an entry `tfdist.json` that says what it is. Weights are `.npy`
entries beside it; a whole model is a `.keras` file, itself such an archive,
that has got this one entry more. A checksum (CRC-32) of each entry is part of
the format, and an archive that is cut off has no directory.
"""

import io
import json
import pathlib
import tempfile
import zipfile

import keras
import numpy as np

from tfdist.codistillation import quantization
from tfdist.codistillation import weights as weights_lib
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import UnusableCheckpointError

_HEADER = "tfdist.json"
_FORMAT = "tfdist-codistillation"
_VERSION = 1
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
    header = {"format": _FORMAT, "version": _VERSION, "dtype": dtype}
    header.update((field, getattr(checkpoint, field)) for field in _FIELDS)
    buffer = io.BytesIO(keras_file or b"")
    with zipfile.ZipFile(buffer, "a" if keras_file else "w") as archive:
        if not keras_file:
            header["weights"] = []
            for number, array in enumerate(checkpoint.weights):
                parts = quantization.quantise(array, dtype)
                header["weights"].append(
                    {"dtype": array.dtype.name, "parts": len(parts)}
                )
                for part, values in enumerate(parts):
                    with archive.open(
                        _entry(number, part), "w", force_zip64=True
                    ) as file:
                        np.lib.format.write_array(
                            file, values, allow_pickle=False
                        )
        archive.writestr(_HEADER, json.dumps(header))
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
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            header = json.loads(archive.read(_HEADER))
            if header["format"] != _FORMAT:
                raise ValueError(f"its format is {header['format']!r}")
            if header["version"] != _VERSION:
                raise ValueError(
                    f"it is of version {header['version']} of the format, "
                    f"{_VERSION} is known"
                )
            fields = {
                field: kind(header[field]) for field, kind in _FIELDS.items()
            }
            if "weights" in header:
                weights = tuple(
                    _weights(archive, number, described)
                    for number, described in enumerate(header["weights"])
                )
                return Checkpoint(**fields, weights=weights)
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


def _entry(number, part):
    return f"weights/{number}.{part}.npy"


def _weights(archive, number, described):
    parts = []
    for part in range(described["parts"]):
        if archive.getinfo(_entry(number, part)).compress_type:
            # It might be much larger than the file.
            raise ValueError(f"its weights {number} are compressed")
        with archive.open(_entry(number, part)) as file:
            parts.append(np.lib.format.read_array(file, allow_pickle=False))
            # The checksum is compared at the end of an entry.
            if file.read(1):
                raise ValueError(f"its weights {number} are too long")
    return quantization.restore(parts, np.dtype(described["dtype"]))
