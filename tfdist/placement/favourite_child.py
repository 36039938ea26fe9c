"""m-SCT: list scheduling that keeps favourite children where parents are.

Hanen and Munier's algorithm for small communication times, as Baechi uses it
(Jeon et al., SoCC 2020). A linear program over times s, the makespan w and one
x per edge, 0 where the consumer is its producer's favourite child:

    min w  such that  s_i + p_i + c_ij x_ij <= s_j,   s_i + p_i <= w,
    sum over j of x_ij >= out_i - 1,   sum over i of x_ij >= in_j - 1,
    0 <= x <= 1

A device that has run a node waits for its favourite child until that could
start elsewhere as early.
"""

import collections

import numpy as np
from scipy import optimize
from scipy import sparse

from tfdist.placement import list_scheduling

HALF = 0.5
_TOLERANCE = 1e-6
_SMALL = 1e-3


def small_communication_times(graph, devices):
    """m-SCT: as `list_scheduling.earliest_task_first`, with favourites.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      Name of a device for the name of each node, a dict.

    Raises:
      PlacementError: It finds nothing that fits.
    """
    return list_scheduling.schedule(graph, devices, "m-SCT", favourite_children)


def favourite_children(graph, devices):
    """The favourite child of each node that has one.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      Position of the child for the position of the parent in `graph.nodes`, a
      dict. No child comes twice.
    """
    pairs, x = relaxation(graph, devices)
    transfer = list_scheduling.both_ways(devices)
    return rounded(pairs, x, [transfer(edge) for edge in graph.edges])


def rounded(pairs, x, saved):
    """Rounds x at 0.5, with at most one favourite child and parent each.

    The constraints allow two edges of a node with exactly 0.5, and a solver a
    little more than they do; so edges are taken by increasing x, each if
    neither end has another favourite.

    Args:
      pairs: (producer, consumer) of each edge, a list.
      x: Of each edge, an array of floats.
      saved: Seconds that each edge's transfer takes; of edges with the same x
        the one that saves most is taken.

    Returns:
      The consumer for the producer of each edge that is taken, a dict.
    """
    order = sorted(
        range(len(pairs)), key=lambda e: (round(float(x[e]), 6), -saved[e])
    )
    found, taken = {}, set()
    for edge in order:
        parent, child = pairs[edge]
        small = x[edge] <= HALF + _TOLERANCE
        if small and parent not in found and child not in taken:
            found[parent] = child
            taken.add(child)
    return found


def relaxation(graph, devices):
    """Solves the linear program.

    Args:
      graph: A `CostGraph`.
      devices: A `Devices`.

    Returns:
      (producer, consumer) positions of each edge, a list, and x, a float64
      array of the same length.
    """
    pairs = [
        (graph.index[edge.producer], graph.index[edge.consumer])
        for edge in graph.edges
    ]
    if not pairs:
        return pairs, np.zeros(0)
    size, num_edges = len(graph.nodes), len(pairs)
    transfer = list_scheduling.both_ways(devices)
    work = np.asarray([node.seconds for node in graph.nodes])
    sent = np.asarray([transfer(edge) for edge in graph.edges])
    # The solver's tolerances are absolute, and seconds may be tiny.
    unit = max(work.max(), sent.max())
    if unit > 0:
        work, sent = work / unit, sent / unit
    # Columns: s of each node, w, x of each edge.
    makespan = size
    rows, columns, values, bounds = [], [], [], []

    def at_most(bound, *terms):
        for column, value in terms:
            rows.append(len(bounds))
            columns.append(column)
            values.append(value)
        bounds.append(bound)

    for edge, (parent, child) in enumerate(pairs):
        at_most(
            -work[parent],
            (parent, 1.0),
            (child, -1.0),
            (size + 1 + edge, sent[edge]),
        )
    for node in range(size):
        at_most(-work[node], (node, 1.0), (makespan, -1.0))
    siblings = collections.defaultdict(list)
    for edge, ends in enumerate(pairs):
        for end, node in enumerate(ends):
            siblings[end, node].append((size + 1 + edge, -1.0))
    for terms in siblings.values():
        if len(terms) > 1:
            at_most(1.0 - len(terms), *terms)
    width = size + 1 + num_edges
    table = sparse.csr_matrix(
        (values, (rows, columns)), shape=(len(bounds), width)
    )
    objective = np.zeros(width)
    objective[makespan] = 1.0
    # Where x does not matter for the makespan, a favourite still saves its
    # transfer.
    objective[makespan + 1 :] = _SMALL * sent / num_edges
    limits = [(0, None)] * (size + 1) + [(0, 1)] * num_edges
    solved = optimize.linprog(
        objective, A_ub=table, b_ub=bounds, bounds=limits, method="highs"
    )
    if solved.x is None:
        raise RuntimeError(f"The linear program failed: {solved.message}")
    return pairs, solved.x[size + 1 :]
