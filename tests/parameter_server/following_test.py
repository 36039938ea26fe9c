"""The chief's decisions, as far as one process shows them."""

import pytest

import tfdist


def test_decisions_of_nobody_known_are_refused():
    with pytest.raises(ValueError, match="`decisions` must be one of.*'all'"):
        tfdist.AsyncStrategy(decisions="all")
