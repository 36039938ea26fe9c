"""Nobody follows: each worker decides for itself (`decisions="each"`)."""


class OwnDecisions:
    """See `ChiefDecisions`, whose part it takes."""

    # No decision of another worker is asked for.
    follows = False
    # Calls of `fit` have no number that all workers know.
    fit_number = number_of_order = 0
    # None is known to be over elsewhere.
    is_passed = False

    def note_data(self, checksum):
        """Does nothing."""

    def begin_data(self, size, skips):
        """Nothing is left out."""
        del size, skips
        return (0, 0)

    def watch(self, frame, call):
        """Does nothing."""

    def call(self, call, function, *args):
        """Calls a `train_function` of Keras."""
        return call(function, *args)

    def before_write(self, variable):
        """Does nothing."""

    def wait_for_word(self, find):
        """Returns what `find` does: nobody knows what the chief has begun."""
        return find()
