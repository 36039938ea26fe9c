"""Equality of objects that are nothing but their settings."""


class Comparable:
    """A base of classes whose instances are equal if their settings are."""

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self):
        # Settings may be dicts, which have no hash.
        return hash(type(self))
