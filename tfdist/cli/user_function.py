"""Functions of the user that a flag names, and imports without noise."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import importlib
import os
import pathlib
import re
import sys
import tempfile
import types
from typing import Any

from tfdist import user_modules
from tfdist.cli import usage

_FORM = "be FILE.py:FUNCTION or package.module:FUNCTION"
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_spec(flag: str, spec: str) -> None:
    """Refuses what names no function, without importing anything.

    So bad syntax is found before TensorFlow is imported, which takes seconds,
    and on a busy machine most of a minute.

    Args:
        flag: name of the flag, without dashes.
        spec: its value, `FILE.py:FUNCTION` or `package.module:FUNCTION`.

    Raises:
        UsageError: if it has another form, or there is no such file, or it
            is not Python.
    """
    place, _, function = spec.rpartition(":")
    is_file = place.endswith(".py")
    well_formed = is_file or _MODULE.fullmatch(place) is not None
    usage.check(well_formed and function.isidentifier(), flag, _FORM, spec)
    if is_file:
        usage.check(
            pathlib.Path(place).is_file(),
            flag,
            f"{_FORM}, and FILE.py a file that exists",
            spec,
        )
        try:
            compile(pathlib.Path(place).read_bytes(), place, "exec")
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise usage.UsageError(
                f"Flag --{flag} must name a file of Python. Received: "
                f"--{flag}={spec}: {place}{f':{line}' if line else ''}: "
                f"{type(error).__name__}: {getattr(error, 'msg', error)}."
            ) from error


def load_function(flag: str, spec: str) -> Callable[[], Any]:
    """Imports the function that a flag names.

    What goes wrong within the user's module is left to be seen as it is.

    Args:
        flag: name of the flag, without dashes.
        spec: its value, which `check_spec` accepts.

    Raises:
        UsageError: if there is no such module, or no such function in it.
    """
    place, _, name = spec.rpartition(":")
    module = (
        user_modules.load(place)
        if place.endswith(".py")
        else _from_path(flag, spec, place)
    )
    function = getattr(module, name, None)
    usage.check(
        callable(function), flag, f"name a function that is in {place}", spec
    )
    return function


def _from_path(flag: str, spec: str, name: str) -> types.ModuleType:
    try:
        return user_modules.load(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # It is there, and lacks something itself.
        raise usage.UsageError(
            f"Flag --{flag} must name a module that can be imported. "
            f"Received: --{flag}={spec}: {error}."
        ) from error


def import_quietly(name: str) -> types.ModuleType:
    """Imports a module that imports TensorFlow, without what that writes.

    Its C++ libraries write about their compilation and about drivers to
    standard error, whatever TF_CPP_MIN_LOG_LEVEL says; to see it, set that
    to 0 or 1.

    Args:
        name: of the module.
    """
    # Importing tfdist has set the variable where the user has not.
    wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL") in ("0", "1")
    quietly = contextlib.nullcontext if wanted else _without_standard_error
    with quietly():
        module = importlib.import_module(name)
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.config.list_logical_devices()  # Looks for drivers.
    return module


@contextlib.contextmanager
def _without_standard_error() -> Iterator[None]:
    """Scope whose standard error is shown only if it fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(saved, 2)
            kept.seek(0)
            os.write(2, kept.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
