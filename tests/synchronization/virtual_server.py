"""What virtual servers hold, and how they carry out the log of a cluster."""

import dataclasses

import numpy as np

from tfdist.synchronization import state as state_lib

RATE = 0.1
SIZE = 3


def batch_gradient(worker, step, parameters):
    """Of a quadratic of the worker's own, on its batch number `step`."""
    numbers = np.arange(1.0, SIZE + 1)
    matrix = np.diag(0.2 + 0.1 * (worker + numbers) % 0.7)
    matrix[0, -1] = matrix[-1, 0] = 0.1  # All depend on each other.
    batch = np.sin(numbers * (1 + 3 * worker + 17 * step))
    return matrix @ (parameters - worker) + batch


@dataclasses.dataclass
class Gradient:
    """What is known of one gradient.

    Attributes:
      worker: Whose it is.
      value: Vector.
      pulled: Version that it was said to be computed from.
      parameters: Those that it was computed from, vector.
      clock: The paper's timestamp of its step: 0 for the first.
      returned: Whether its worker was not waited for when it came.
    """

    worker: int
    value: np.ndarray
    pulled: int
    parameters: np.ndarray
    clock: int
    returned: bool


@dataclasses.dataclass
class Update:
    """One update of the log.

    Attributes:
      gradients: List of `Gradient`.
      lateness: Their staleness, by the log.
      present: Workers that were waited for when it was made, frozenset.
    """

    gradients: list
    lateness: list
    present: frozenset


class Server:
    """Carries out the log with plain SGD, as a parameter server does.

    Args:
      run: The `Run`.

    Attributes:
      parameters: Vector.
      history: The parameters of each version, a list.
      executed: Entries of the log that it has carried out.
      taken: Keys of the gradients among them, a set.
      updates: List of `Update`.
    """

    def __init__(self, run):
        self._run = run
        self._sum = None
        self._keys = []
        self._lateness = []
        self.parameters = np.zeros(SIZE)
        self.history = [self.parameters]
        self.executed = 0
        self.taken = set()
        self.updates = []

    def carry_out(self, state):
        """Does what is in the log and not done yet."""
        ring = len(state.log_key)
        assert state.head - self.executed <= ring, "the log has been lost"
        for number in range(self.executed, int(state.head)):
            place = number % ring
            self._enter(
                int(state.log_key[place]),
                int(state.log_staleness[place]),
                int(state.log_first[place]),
                int(state.log_count[place]),
            )
            self.executed += 1

    def _enter(self, key, staleness, first, count):
        run = self._run
        if key != state_lib.NO_GRADIENT:
            assert key not in self.taken, "a gradient counts twice"
            self.taken.add(key)
            value = run.scale(staleness) * run.gradients[key].value
            if first:
                # What a run leaves that ends is part of no update.
                assert run.earlier.issuperset(self._keys)
                self._keys, self._lateness = [], []
            assert first or self._keys
            self._sum = value if first else self._sum + value
            self._keys.append(key)
            self._lateness.append(staleness)
        if count:
            assert count == len(self._keys)
            self.parameters = self.parameters - RATE * self._sum / count
            self.history.append(self.parameters)
            self.updates.append(
                Update(
                    [run.gradients[key] for key in self._keys],
                    self._lateness,
                    frozenset(run.present),
                )
            )
            self._keys, self._lateness = [], []
