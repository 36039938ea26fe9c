"""Nobody follows: each worker decides for itself (`decisions="each"`)."""

from tfdist.null_methods import nothing


class OwnDecisions:
    """See `ChiefDecisions`, whose part it takes."""

    # No decision of another worker is asked for.
    follows = False
    chiefs_word = None
    # Calls of `fit` have no number that all workers know.
    fit_number = number_of_order = 0
    # None is known to be over elsewhere, or to have more steps.
    is_passed = takes_no_step = comes_back = is_in_loop = False
    note_data = watch = look_again = await_readers = nothing

    def before_write(self, variable):
        return True

    def begin_data(self, size, skips):
        return (0, 0)

    def call(self, call, function, *args):
        return call(function, *args)

    def wait_for_word(self, find):
        # Nobody knows what the chief has begun.
        return find()
