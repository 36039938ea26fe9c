"""A saved state as a file: a ZIP archive that nothing is unpickled from.

Arrays are `.npy` entries, uncompressed; `tfdist.json` says what they are. The
checksum (CRC-32) of each entry is part of the format, and an archive that is
cut off has no directory: what is damaged is not read.
"""

import dataclasses
import functools
import json
import zipfile

import ml_dtypes  # noqa: F401  Makes NumPy know "bfloat16".
import numpy as np

_HEADER = "tfdist.json"
_FORMAT = "tfdist-state"
_VERSION = 1
_BLOCK_BYTES = 1 << 20


class UnusableStateError(ValueError):
    """The bytes read are no saved state, or are damaged."""


class ModelMismatchError(ValueError):
    """Two workers of one cluster built different models."""


class LazyArray:
    """An array that is read when it is needed, and not kept.

    Args:
      dtype: Its NumPy type.
      read: Callable without arguments that returns it.
    """

    def __init__(self, dtype, read):
        self.dtype = np.dtype(dtype)
        self._read = read

    def __array__(self, dtype=None, copy=None):
        return self._read().astype(dtype or self.dtype, copy=False)


@dataclasses.dataclass
class SavedState:
    """A state of a run.

    Attributes:
      header: Dict that JSON can hold.
      arrays: Dict of name to NumPy array or `LazyArray`.
      is_partial: Whether models were taken out of it that have gone on since;
        no part of a file.
    """

    header: dict
    arrays: dict
    is_partial: bool = False


def are_equal(one, other, without):
    """Whether two `SavedState`s hold the same.

    Args:
      one: A `SavedState`.
      other: Another one. Of lazy arrays it reads one at a time.
      without: Arrays whose names begin so are not compared: only an update
        changes them.
    """
    if (
        one.header["updates"] != other.header["updates"]
        or one.arrays.keys() != other.arrays.keys()
    ):
        return False
    return all(
        name.startswith(without)
        or np.array_equal(plain(array), plain(other.arrays[name]))
        for name, array in one.arrays.items()
    )


def write(state, file, kind=_FORMAT, mode="w"):
    """Writes a `SavedState` to a binary file that is open for writing.

    Args:
      state: The `SavedState`.
      file: The file.
      kind: Name of the format, for `read`.
      mode: "w", or "a" for more entries of an archive that the file holds.
    """
    dtypes = {name: array.dtype.name for name, array in state.arrays.items()}
    content = {
        "format": kind,
        "version": _VERSION,
        "header": state.header,
        "dtypes": dtypes,
    }
    with zipfile.ZipFile(file, mode) as archive:
        for name, array in state.arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(
                    entry, plain(array), allow_pickle=False
                )
        archive.writestr(_HEADER, json.dumps(content))


def read(file, kind=_FORMAT, lazy=None):
    """Reads what `write` has written.

    Args:
      file: A binary file that is open for reading.
      kind: Name of the format that is read.
      lazy: Arrays whose names begin so are checked, and read from the file
        of this name later; None for all to be read now.

    Returns:
      A `SavedState`.

    Raises:
      UnusableStateError: It is damaged, or something else.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            content = json.loads(archive.read(_HEADER))
            if content["format"] != kind:
                raise ValueError(f"its format is {content['format']!r}")
            if content["version"] != _VERSION:
                raise ValueError(
                    f"it is of version {content['version']} of the format, "
                    f"{_VERSION} is known"
                )
            arrays = {}
            for name, dtype in content["dtypes"].items():
                dtype = np.dtype(dtype)
                if lazy is None or not name.startswith(lazy):
                    arrays[name] = _read_array(archive, name, dtype)
                    continue
                _check_entry(archive, name)
                arrays[name] = LazyArray(
                    dtype,
                    functools.partial(_read_later, file.name, name, dtype),
                )
        return SavedState(content["header"], arrays)
    except Exception as error:  # Of all kinds: it may be anything.
        reason = str(error) or type(error).__name__
        raise UnusableStateError(reason) from error


def _check_entry(archive, name):
    """Reads an entry to its end, where its checksum is compared."""
    with archive.open(f"{name}.npy") as entry:
        while entry.read(_BLOCK_BYTES):
            pass


def _read_later(path, name, dtype):
    with zipfile.ZipFile(path) as archive:
        return _read_array(archive, name, dtype)


def _read_array(archive, name, dtype):
    if archive.getinfo(f"{name}.npy").compress_type:
        # It might be much larger than the file.
        raise ValueError(f"its {name!r} is compressed")
    with archive.open(f"{name}.npy") as entry:
        array = np.lib.format.read_array(entry, allow_pickle=False)
        # The checksum is compared at the end of an entry.
        if entry.read(1):
            raise ValueError(f"its {name!r} is too long")
    return array if array.dtype == dtype else array.view(dtype)


def plain(array):
    """`array`, as bits where NumPy has no name of its own for its type."""
    array = np.asarray(array)
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))
