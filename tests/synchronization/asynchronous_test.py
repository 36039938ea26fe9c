"""Asynchronous decisions: each gradient is an update when it arrives.

Dean et al. 2012 (papers.md 1a), per gradient g of parameters w_k that may be
old: w <- w - rate * g(w_k).
"""

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from tests import laws
from tests.synchronization import virtual_scripts
from tests.synchronization.virtual_run import Run
from tests.synchronization.virtual_server import RATE
from tests.synchronization.virtual_server import SIZE
from tfdist.synchronization import Async


class DownpourOracle:
    """A server that adds up whatever comes."""

    def __init__(self, num_workers):
        self.parameters = np.zeros(SIZE)
        self.version = 0
        self.waiting = set()  # Nobody, ever.
        self.dropped = [0] * num_workers

    def receive(self, worker, gradient, version):
        del worker, version
        self.parameters = self.parameters - RATE * gradient
        self.version += 1

    def begin_anew(self, workers):
        del workers

    def lose(self, worker):
        """What has come has come."""


# Who has left, and then ended, is not expected again when it comes back.
_ENDS_AFTER_IT_HAS_LEFT = [
    *(("leave", 0), ("end", 0), ("end", 0), ("leave", 0), ("crash", 0)),
    *(("advance", 0), ("leave", 0), ("restart", 0), ("advance", 0)),
]


@laws.settings(max_examples=8, nightly=250)
@given(num_workers=st.sampled_from([1, 3, 4]), script=virtual_scripts.scripts())
@example(num_workers=3, script=_ENDS_AFTER_IT_HAS_LEFT)
def test_parameters_are_those_of_the_paper(num_workers, script):
    run = Run(Async(), num_workers, oracle=DownpourOracle(num_workers))
    run.play(script).drain()
    for version, update in enumerate(run.observer.updates):
        (gradient,) = update.gradients
        assert update.lateness == [version - gradient.pulled]


def test_repr_tells_methods_apart():
    assert repr(Async().resolve(3)) == "Async()"
