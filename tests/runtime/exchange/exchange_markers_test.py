"""Whether an update is half done is seen from the marks."""

import numpy as np
import pytest

from tfdist.runtime.exchange import exchange_markers

_BOTH, _FIRST = [1, 1], [1, 0]
_NONE = [0, 0, 0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Of worker 1 on two servers, its only site.
        ([7, *_BOTH], [7, *_BOTH], {}),
        ([8, *_BOTH], [7, *_BOTH], {(1, 8): [1]}),
        ([7, *_BOTH], [8, *_BOTH], {(1, 8): [0]}),
        # The first exchange of all.
        ([7, *_BOTH], _NONE, {(1, 7): [1]}),
        # The second server has no part in the newest one.
        ([9, *_FIRST], [7, *_BOTH], {}),
        (_NONE, _NONE, {}),
    ],
)
def test_half_done(first, second, expected):
    worker_0 = [5, *_BOTH]
    found = exchange_markers.half_done(
        np.array([[[worker_0, first]], [[worker_0, second]]])
    )
    assert found == expected
