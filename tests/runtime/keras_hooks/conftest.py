"""Waits of tests with tables that they write."""

import pytest

from tfdist.cluster import waiting


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Who waits soon looks at the next table."""
    monkeypatch.setattr(waiting, "_POLL_SECONDS", 0.01)
