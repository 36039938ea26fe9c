"""The registry as it is before a test."""

from collections.abc import Iterator
import contextlib
import sys

from tfdist.strategies import registry


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """Scope at whose end what was registered in it is forgotten."""
    before = dict(registry._entries)
    try:
        yield
    finally:
        registry._entries.clear()
        registry._entries.update(before)
        for name in [n for n in sys.modules if n.startswith("tfdist_own_")]:
            del sys.modules[name]
