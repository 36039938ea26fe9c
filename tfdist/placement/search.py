"""A search over placements: simulated annealing.

What Mirhoseini et al. (ICML 2017) learn a policy for: groups that stay
together are moved between devices, and the reward is the time of a step,
here a simulated one. A policy takes hours of samples; annealing is what is
left of the idea that fits a laptop, and something to compare with.
"""

import itertools
import math

import numpy as np

from tfdist import checks
from tfdist.placement import memory
from tfdist.placement import timeline

_HOT, _COLD = 0.1, 0.001  # Of the seconds of the first that fits.
_PROPOSALS = 20  # For each evaluation: few of them fit when memory is short.


def anneal(graph, devices, start=None, evaluations=1000, seed=0):
    """Searches for the placement with the fastest step.

    If there are no more than `evaluations` placements at all, each that fits
    is tried. Otherwise a move gives one group, a run of neighbours in
    topological order or two groups that swap other devices. What does not fit
    is only a way to what does, and never evaluated or returned.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.
      start: Device for the name of each node, a dict, or several of them, of
        which the best is taken; those that do not fit are only a place to
        begin. The result is never worse than any. None: all on the first
        device.
      evaluations: How many placements are evaluated at most, with `start`.
      seed: Of the random moves, an int.

    Returns:
      Seconds of a step, a float, and the placement: name of a device for the
      name of each node, a dict.

    Raises:
      ValueError: `evaluations` is not an integer of at least 1 or fewer than
        starts, or `start` is not a placement.
      PlacementError: Nothing that fits was found.
    """
    evaluations = checks.count("evaluations", evaluations)
    if start is None:
        start = dict.fromkeys(graph.index, devices.names[0])
    starts = [start] if isinstance(start, dict) else list(start)
    if not 1 <= len(starts) <= evaluations:
        raise ValueError(
            f"Argument `start` must be 1 to {evaluations} (evaluations) "
            f"placements. Received: {len(starts)} placements"
        )
    starts = [memory.assignment_of(graph, each, devices) for each in starts]
    judge = _Judge(graph, devices)
    if len(devices) ** len(graph.groups) <= evaluations:
        for each in itertools.product(
            range(len(devices)), repeat=len(graph.groups)
        ):
            judge(_spread(graph, each))
    else:
        _walk(graph, devices, judge, starts, evaluations, seed)
    if judge.best is None:
        raise memory.PlacementError(
            "The memory limits must let the model be placed. A search "
            f"of {judge.proposals} placements found none that fits; "
            f"the nearest was {judge.nearest} bytes short."
        )
    return judge.seconds, memory.placement_of(graph, judge.best, devices)


class _Judge:
    """Energies of placements: seconds, or by how much they do not fit."""

    def __init__(self, graph, devices):
        self.best, self.seconds = None, math.inf
        self.evaluations = self.proposals = 0
        self.nearest = math.inf
        self._graph, self._devices = graph, devices
        self._known = {}
        # Of energies: of the first that fits, when there is one.
        self.scale = 1.0
        # One byte too many is as bad as all of them, or more.
        total = sum(n.resident_bytes + n.activation_bytes for n in graph.nodes)
        self._total = max(total, 1)
        self._simulator = timeline.Simulator(graph, devices)

    def __call__(self, assignment):
        """As `energy`, of what is proposed."""
        self.proposals += 1
        return self.energy(assignment)

    def energy(self, assignment):
        """Energy of a list of numbers of devices, a float."""
        key = tuple(assignment)
        if key not in self._known:
            self._known[key] = self._look_at(assignment)
        seconds, over = self._known[key]
        if seconds < math.inf:
            return seconds
        return self.scale * (2.0 + over / self._total)

    def _look_at(self, assignment):
        over = memory.excess_bytes(self._graph, assignment, self._devices)
        self.nearest = min(self.nearest, over)
        if over:
            return math.inf, over
        self.evaluations += 1
        seconds = self._simulator.seconds(assignment)
        if seconds < self.seconds:
            if self.best is None:
                self.scale = seconds or 1.0
            self.best, self.seconds = list(assignment), seconds
        return seconds, 0


def _walk(graph, devices, judge, starts, evaluations, seed):
    """Annealing; what it finds is in `judge`."""
    rng = np.random.default_rng(seed)
    at = min(starts, key=judge)
    now = [at[group[0]] for group in graph.groups]
    most = _PROPOSALS * evaluations
    while judge.evaluations < evaluations and judge.proposals < most:
        done = max(judge.evaluations / evaluations, judge.proposals / most)
        temperature = judge.scale * _HOT * (_COLD / _HOT) ** done
        other = _moved(now, len(devices), rng)
        # Both: as soon as something fits, all else costs more than before.
        new = judge(_spread(graph, other))
        worse = new - judge.energy(_spread(graph, now))
        if worse <= 0 or rng.random() < math.exp(-worse / temperature):
            now = other


def _moved(now, num_devices, rng):
    """Another device for one group or a run of them, or two swapped."""
    size = len(now)
    other = list(now)
    move = rng.integers(3)
    first = int(rng.integers(size))
    if move == 0 or size == 1:
        # Any but its own.
        other[first] += int(rng.integers(1, max(num_devices, 2)))
        other[first] %= num_devices
    elif move == 1:
        # Short runs are tried as often as long ones.
        length = int(size ** rng.random())
        run = slice(first, first + length + 1)
        other[run] = [int(rng.integers(num_devices))] * len(other[run])
    else:
        second = int(rng.integers(size))
        other[first], other[second] = other[second], other[first]
    return other


def _spread(graph, of_groups):
    """Devices of nodes for devices of groups, a list."""
    assignment = [0] * len(graph.nodes)
    for device, group in zip(of_groups, graph.groups, strict=True):
        for number in group:
            assignment[number] = device
    return assignment
