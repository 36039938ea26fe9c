"""Which first steps of two workers are the same, and which are refused.

Worker 0 takes its first steps, and then worker 1, which hears of those.
"""

import json
import types

import keras
import numpy as np
import pytest

import tfdist
from tfdist.peers import first_steps


class Consistency:
    """Meetings of worker 0 by itself, or of worker 1 after those."""

    def __init__(self, earlier=None):
        """Makes those of worker 1 if there are `earlier` ones."""
        self.mine, self._earlier = [], earlier

    def meet(self, moment, number):
        """Returns the numbers of both."""
        self.mine.append(number)
        theirs = number
        if self._earlier is not None:
            theirs = self._earlier.mine[len(self.mine) - 1]
        return np.array([[theirs], [number]])


class Worker:
    """A worker with two weights, and an optimizer for both."""

    def __init__(self, zero=None, own_models=0, **settings):
        """Makes one that follows `zero` and has made some models of its own."""
        self.strategy = strategy = tfdist.PeerToPeerStrategy()
        with strategy.scope():
            self.own = [keras.Variable([0.0]) for _ in range(own_models)]
            self.variables = [keras.Variable([0.0]) for _ in range(2)]
            self.optimizers = [
                keras.optimizers.SGD(**settings) for _ in range(2)
            ]
        self.consistency = Consistency(zero and zero.consistency)
        engine = types.SimpleNamespace(
            roster=types.SimpleNamespace(others=[1]),
            consistency=self.consistency,
            collectives=types.SimpleNamespace(number=0),
            numbers_of=strategy.state.numbers_of,
        )
        self.collectives = engine.collectives
        self.first_steps = first_steps.FirstSteps(engine)

    def train(self, *places, optimizer=0):
        """Takes the first step for variables."""
        chosen = [self.variables[place] for place in places]
        self.first_steps.begin(self.optimizers[optimizer], chosen)

    def fit(self):
        """All agree on the values of all variables."""
        self.collectives.number += 1
        counts = [one.iterations for one in self.optimizers]
        values = [one.value for one in (*self.variables, *counts)]
        for value in values:
            value.is_agreed = True
        self.first_steps.note_agreed(values)


def both(own_models=0, **settings):
    zero = Worker(**settings)
    return zero, Worker(zero, own_models, **settings)


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("other", [[1], [0, 1], [1, 0]])
def test_another_order_or_set_of_variables_is_refused(fits, other):
    zero, one = both()
    if fits:
        zero.fit()
        one.fit()
    zero.train(0)
    with pytest.raises(ValueError, match="in the same order"):
        one.train(*other)
    # Also where the step is tried again.
    zero.train(0)
    with pytest.raises(ValueError, match="in the same order"):
        one.train(*other)


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_accumulation_steps": 2}], ids=str
)
def test_another_optimizer_is_refused(settings):
    zero, one = both(**settings)
    zero.train(0)
    with pytest.raises(ValueError, match="or of another one"):
        one.train(0, optimizer=1)


@pytest.mark.parametrize("fits", [False, True])
def test_the_same_order_is_none_of_another(fits):
    zero, one = both()
    for worker in zero, one:
        if fits:
            worker.fit()
        worker.train(0)
        worker.train(1)
        worker.train(0, 1)
        worker.train(0, 1, optimizer=1)


def test_variables_of_a_fit_are_known_whatever_else_a_worker_has_made():
    zero, one = both(own_models=3)
    for worker in zero, one:
        worker.fit()
        worker.train(1)
    zero, one = both(own_models=3)
    zero.train(1)
    with pytest.raises(ValueError, match="in the same order"):
        one.train(1)


def test_a_joiner_takes_the_first_steps_that_others_have_taken():
    host, joiner = both()
    host.train(0)
    host.fit()
    host.train(1)
    position = json.loads(json.dumps(host.first_steps.position))
    joiner.first_steps.take_position(position)
    joiner.train(0)
    with pytest.raises(ValueError, match="in the same order"):
        joiner.train(0)
    joiner.train(1)
    assert not joiner.consistency.mine
    # From then on it meets them.
    host.consistency.mine.clear()
    host.train(1, 0)
    joiner.train(1, 0)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("who", ["host", "joiner"])
def test_a_joiner_needs_all_that_others_have_made_before_their_first_step(
    who, when
):
    """A snapshot tells by numbers which value is whose."""
    own = int(when == "before")
    host = Worker(own_models=own * (who == "host"), momentum=0.9)
    joiner = Worker(host, own * (who == "joiner"), momentum=0.9)
    for worker in host, joiner:
        worker.fit()
        is_other = worker is {"host": host, "joiner": joiner}[who]
        with worker.strategy.scope():
            if when == "after" and is_other:
                worker.own = keras.Variable([0.0])
            worker.optimizers[0].build(worker.variables)
        if worker is host:
            host.train(0, 1)
            position = json.loads(json.dumps(host.first_steps.position))
    joiner.first_steps.take_position(position)
    variables = [one.value for one in joiner.variables]
    is_as_there = joiner.first_steps.is_as_at_join(variables, 1)
    assert is_as_there == (when == "after")
    with pytest.raises(ValueError, match="in the same order"):
        joiner.train(0, 1)
