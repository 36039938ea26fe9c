"""The owner of a `ParameterStore`, as its store and variables know it."""

import abc


class Owner(abc.ABC):
    """Sees to what a store's variables and calls need beyond the store.

    Attributes:
      files: The `Files` that this task writes.
    """

    @abc.abstractmethod
    def call(self, function, *args):
        """Calls what talks to servers; outlives servers that come back."""

    @abc.abstractmethod
    def role_of(self, role, made_by_optimizer):
        """Returns the role of a new variable, where it is another.

        Args:
          role: The `Role` that it has by what Keras says.
          made_by_optimizer: Whether it is state of an optimizer.
        """

    @abc.abstractmethod
    def was_made(self, variable):
        """Called when a variable was made for the user."""

    @abc.abstractmethod
    def stamp_rows(self, table):
        """Called before rows of `table` are first pulled."""

    @abc.abstractmethod
    def before_eager_read(self, variable):
        """Called before a replica is read eagerly."""

    @abc.abstractmethod
    def before_eager_write(self, variable):
        """Called before a replica is assigned eagerly.

        Returns:
          Whether `after_eager_write` is to be called.
        """

    @abc.abstractmethod
    def after_eager_write(self, variable):
        """Called after a replica was assigned eagerly, to pass that on."""
