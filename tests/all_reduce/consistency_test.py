"""Workers that meet, and are not where the others are."""

import numpy as np
import pytest

from tfdist.all_reduce import consistency
from tfdist.all_reduce.consistency import Moment


class Others:
    """Collectives, in which another worker is at a moment of its own."""

    def __init__(self, moment):
        self._moment = moment

    def gather(self, row, name):
        """Returns the rows of both."""
        del name
        return np.array([row, [int(self._moment), *row[1:]]], np.int64)


@pytest.mark.parametrize(
    ("other", "needs_batch"), [(Moment.STEP, True), (Moment.BARRIER, False)]
)
def test_a_worker_that_is_elsewhere_is_named(other, needs_batch):
    both = consistency.Consistency(Others(other), ("one", "two"))
    with pytest.raises(RuntimeError, match="two is at .* one at") as caught:
        both.meet(Moment.END_OF_FIT, 1)
    assert ("each worker needs one" in str(caught.value)) is needs_batch
