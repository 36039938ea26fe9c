"""Callbacks of this package's own among those that a call of Keras has."""

import keras


class _Own(keras.callbacks.LambdaCallback):
    """Calls functions for one part of this package.

    Args:
      owner: Name of the part.
      **hooks: See `keras.callbacks.LambdaCallback`.
    """

    def __init__(self, owner, **hooks):
        super().__init__(**hooks)
        self.owner = owner


def listed(callbacks):
    """Returns a list of all callbacks.

    Args:
      callbacks: What `fit`, `evaluate` or `predict` was given, or has.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return keras.tree.flatten(callbacks or [])


def others(callbacks, owner):
    """Returns a list of the callbacks that `put_around` does not replace.

    Args:
      callbacks: A `keras.callbacks.CallbackList`.
      owner: See `put_around`.
    """
    return [
        one
        for one in callbacks.callbacks
        if not (isinstance(one, _Own) and one.owner == owner)
    ]


def put_around(callbacks, owner, first, last=None, between=None):
    """Puts own callbacks around a call's, in place of an earlier call's.

    Args:
      callbacks: The call's `keras.callbacks.CallbackList`.
      owner: Name of the part of this package whose callbacks they are.
      first: Dict of the name of a callback's method to the function that is
        called, with its arguments, before the methods of all others.
      last: The same, called after them; None for nothing.
      between: The same, called after that of each other.
    """
    kept = others(callbacks, owner)
    if between:
        kept = [c for one in kept for c in (one, _Own(owner, **between))]
    after = [_Own(owner, **last)] if last else []
    # A callback that trains a batch is in a loop over the old list.
    callbacks.callbacks = [_Own(owner, **first), *kept, *after]


def at_end(callbacks, methods, function):
    """Has a function called once, after the callbacks that are there.

    Args:
      callbacks: The call's `keras.callbacks.CallbackList`.
      methods: Names of the methods of a callback that see the call's end.
      function: Callable without arguments.
    """

    def end(logs=None):
        # A list of the user's own may be used again. It is being gone through.
        callbacks.callbacks = [c for c in callbacks.callbacks if c is not own]
        function()

    own = keras.callbacks.LambdaCallback(**dict.fromkeys(methods, end))
    callbacks.callbacks.append(own)
