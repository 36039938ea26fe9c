"""Names of Keras's variables, where the name alone tells what one is."""


def leaf(name):
    """Returns the last part of a variable's name; "" for None."""
    return (name or "").split(":")[0].rsplit("/", 1)[-1]


def is_seed(name):
    """Whether it is the state of a `keras.random.SeedGenerator`."""
    return leaf(name) == "seed_generator_state"


def is_accumulator(name):
    """Whether an optimizer's variable is a sum of gradients to be applied."""
    return leaf(name).endswith("gradient_accumulator")
