"""Names of Keras's variables, where the name alone tells what one is."""

_SEED_STRIDE = 1_000_003
_MAX_SEED = 2**31 - 1


def leaf(name):
    """Returns the last part of a variable's name; "" for None."""
    return (name or "").split(":")[0].rsplit("/", 1)[-1]


def is_seed(name):
    """Whether it is the state of a `keras.random.SeedGenerator`."""
    return leaf(name) == "seed_generator_state"


def is_accumulator(name):
    """Whether an optimizer's variable is a sum of gradients to be applied."""
    return leaf(name).endswith("gradient_accumulator")


def spread_seed(state, worker):
    """Gives each worker a random stream of its own, the first Keras's.

    Workers are seeded alike; drawing the same dropout masks at the same step
    would waste what several workers are for.

    Args:
      state: Array, the state of a `SeedGenerator`.
      worker: Number of the worker.

    Returns:
      The worker's, a list of ints.
    """
    seed, *rest = state.tolist()
    return [seed_of(worker, seed), *rest]


def seed_of(worker, seed):
    """Returns a worker's own seed, that of the first being `seed`."""
    return (seed + worker * _SEED_STRIDE) % _MAX_SEED
