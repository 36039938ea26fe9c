"""Names that tfdist reads of Keras and TensorFlow, and tests that use them."""

import pathlib
import re

import keras
import pytest

import tfdist


def without_a_canary(module, *files):
    """Names that a module defines and no test uses, a list.

    Args:
        module: of tfdist.
        *files: paths of its tests.
    """
    stem = module.__name__.rpartition(".")[2]
    text = "".join(pathlib.Path(file).read_text("utf-8") for file in files)
    return [
        name for name in _public_names(module) if f"{stem}.{name}" not in text
    ]


def check_refusal(monkeypatch, module, name, expected, missing):
    """Checks that a strategy refuses a Keras that lacks something.

    Args:
        monkeypatch: the fixture.
        module: with a function `check`.
        name: of what the module looks for.
        expected: what it is to look for instead.
        missing: what the error says that Keras lacks.
    """
    monkeypatch.setattr(module, name, expected)
    module.check.cache_clear()
    with pytest.raises(RuntimeError) as raised:
        tfdist.AsyncStrategy()
    assert f"not support Keras {keras.version()}" in str(raised.value)
    assert missing in str(raised.value)


def _public_names(module):
    """What a module defines, without what it imports."""
    text = pathlib.Path(module.__file__).read_text("utf-8")
    return re.findall(
        r"(?m)^(?:def |class |(?=[A-Z]\w+ = ))([A-Za-z]\w*)", text
    )
