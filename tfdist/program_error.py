"""The error about calls that a program must not make."""


class ProgramError(RuntimeError):
    """A mistake of the program, which a restart would repeat.

    `tfdist launch` does not restart a task that such an error ends.
    """

    # AutoGraph makes errors in a `tf.function` anew, to add the place in the
    # program. It keeps a class only if it has this very constructor.
    __init__ = Exception.__init__
