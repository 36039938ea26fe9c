"""Variables by the order in which they were made, held by whoever uses them."""

import weakref


class VariableList:
    """Remembers variables, and keeps none of them alive.

    It is used as a list of all that were ever made: `len` counts them all, and
    a position is never used again. Slices and iteration give those that are
    there.

    Args:
      variables: What is in it at first, an iterable.
    """

    def __init__(self, variables=()):
        self._references = {}
        self._length = 0
        for variable in variables:
            self.append(variable)

    def append(self, variable):
        """Adds a variable, in the next position."""
        self._references[self._length] = weakref.ref(variable)
        self._length += 1

    def __len__(self):
        return self._length

    def __iter__(self):
        return iter([variable for _, variable in self.items()])

    def __getitem__(self, index):
        if isinstance(index, slice):
            positions = range(*index.indices(self._length))
            return [v for k, v in self.items() if k in positions]
        reference = self._references.get(index)
        variable = None if reference is None else reference()
        if variable is None:
            raise IndexError(f"Variable {index} is no longer there.")
        return variable

    def items(self):
        """Pairs of position and variable, a list."""
        found = [(k, r()) for k, r in list(self._references.items())]
        return [(k, variable) for k, variable in found if variable is not None]

    def gone(self):
        """Positions of what nobody uses any more, a list."""
        return [k for k, r in list(self._references.items()) if r() is None]

    def forget(self, positions):
        """Forgets what is in `positions`, whether it is there or not."""
        for position in positions:
            self._references.pop(position, None)
