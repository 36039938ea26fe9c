"""The memory of L-BFGS as scalars: dot products of pairs, coefficients."""

import numpy as np


def rows(size):
    """Returns the number of rows of the matrix of a memory's pairs.

    Args:
      size: Number of pairs that are kept.
    """
    return 2 * (size + 1)


class PairMemory:
    """Dot products of the last pairs `(s, y)` of steps and gradient changes.

    The pairs are rows of a matrix on the shards, `s` in row `slot` and `y` in
    row `size + 1 + slot`. Here are only their dot products, from which the
    two-loop recursion (Nocedal and Wright 2006, algorithm 7.4) computes the
    coefficients of a direction over these rows and the gradient: the
    vector-free form, which needs no vector and two round trips.

    There is a slot more than pairs: the newest pair is written while the oldest
    one is still there, so that an iteration that is interrupted has lost
    nothing.

    Args:
      size: Number of pairs that are kept, at least 1.

    Attributes:
      slots: Those in use, the oldest pair first, a list of ints.
      num_rows: Of the matrix, `2 (size + 1)`.
      products: Dot products of all rows, float64 `(num_rows, num_rows)`; what
        is not of a slot in use means nothing.

    References:
      Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014.
    """

    def __init__(self, size):
        self.size = size
        self.slots = []
        self.num_rows = rows(size)
        self.products = np.zeros((self.num_rows, self.num_rows))

    @property
    def free_slot(self):
        """Slot of the next pair, which no pair in use has."""
        return min(set(range(self.size + 1)) - set(self.slots))

    def rows_of(self, slot):
        """Returns the numbers of the rows of a slot's `s` and `y`."""
        return slot, self.size + 1 + slot

    def clear(self):
        """Forgets all pairs."""
        self.slots = []

    def add(self, slot, s_products, y_products):
        """Takes note of the newest pair, and forgets the oldest of too many.

        Args:
          slot: Its slot, the free one.
          s_products: Dot products of all rows with `s`, float64 `(num_rows,)`.
          y_products: The same with `y`.
        """
        self.slots = [*self.slots, slot][-self.size :]
        for row, values in zip(
            self.rows_of(slot), (s_products, y_products), strict=True
        ):
            self.products[row, :] = values
            self.products[:, row] = values

    def coefficients(self, gradient_products):
        """Returns the direction `-H g` by its coefficients.

        Args:
          gradient_products: Dot products of all rows with the gradient `g`,
            float64 `(num_rows,)`.

        Returns:
          Those of the rows, float64 `(num_rows,)`, and that of `g`, a float.
        """
        found = np.zeros(self.num_rows)
        if not self.slots:
            return found, -1.0
        # The vector of the recursion is `found @ rows + of_gradient * g`.
        of_gradient = -1.0

        def dot(row):
            return (
                found @ self.products[:, row]
                + of_gradient * gradient_products[row]
            )

        # An unused row may hold anything, and has the coefficient 0.
        pairs = [self.rows_of(slot) for slot in self.slots]
        used = [row for pair in pairs for row in pair]
        unused = np.setdiff1d(np.arange(self.num_rows), used)
        self.products[unused, :] = self.products[:, unused] = 0.0
        alphas = {}
        for s, y in reversed(pairs):
            alphas[s] = dot(s) / self.products[s, y]
            found[y] -= alphas[s]
        # The size of the inverse Hessian, `s y / y y` of the newest pair.
        s, y = pairs[-1]
        scale = self.products[s, y] / self.products[y, y]
        found *= scale
        of_gradient *= scale
        for s, y in pairs:
            found[s] += alphas[s] - dot(y) / self.products[s, y]
        return found, float(of_gradient)

    def state(self):
        """Returns what `restore` needs, which JSON can hold."""
        return {"slots": self.slots, "products": self.products.tolist()}

    def restore(self, state):
        """Becomes what another one was.

        Args:
          state: From `state`, of a memory of the same size.
        """
        self.slots = list(state["slots"])
        self.products = np.array(state["products"])
