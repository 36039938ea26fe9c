"""Modules of the user's that a flag names: FILE.py or package.module."""

import importlib
import importlib.util
import os
import pathlib
import sys
import types
import zlib


def load(place: str) -> types.ModuleType:
    """Imports a module, once.

    Args:
      place: Path of a file that ends with `.py`, or name of a module, which
        may be in the working directory, as for `python -m`.

    Raises:
      ModuleNotFoundError: There is none.
    """
    if place.endswith(".py"):
        return _from_file(pathlib.Path(place).resolve())
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return importlib.import_module(place)


def _from_file(path: pathlib.Path) -> types.ModuleType:
    if not path.is_file():
        raise ModuleNotFoundError(f"No such file: {path}")
    # As `python FILE.py` does, so that it finds its neighbours.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # One name for each file: --model and --data may share one, and two files
    # of one name are two modules.
    name = f"tfdist_own_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
