"""A saved state where the same variables are in other places."""

import numpy as np

from tfdist.runtime.checkpoint import saved_layout
from tfdist.saved_state import SavedState

KERNEL = ["dense_3/kernel", "parameter", "float32", [2]]
MEAN = ["norm_1/mean", "state", "float32", [2]]
# Without local steps: the servers' optimizer has the counter and the slots.
PLAIN = [
    KERNEL,
    MEAN,
    ["sgd/iterations", "iterations", "int64", []],
    ["sgd/dense_3_kernel_momentum", "slot", "float32", [2]],
]
# With local steps: those are the worker's own, whose optimizer has another
# number by now; the servers have an outer optimizer besides.
OUTER = [
    ["outer/iterations", "iterations", "int64", []],
    ["outer/dense_7_kernel_momentum", "slot", "float32", [2]],
]
LOCAL_STEPS = [
    ["dense_7/kernel", *KERNEL[1:]],
    ["norm_4/mean", *MEAN[1:]],
    *OUTER,
    ["sgd/iterations", "clock", "int64", []],
]
OWN_SLOT = ["sgd/dense_7_kernel_momentum", "slot", "float32", [2]]


def saved(variables, own=()):
    """A state whose arrays are numbered through: variables, then own ones."""
    names = [f"variable/{k}" for k, v in enumerate(variables) if v]
    names += [f"local/{k}" for k in range(len(own))]
    return SavedState(
        {"variables": list(variables), "locals": list(own), "updates": 9},
        {name: np.array(k) for k, name in enumerate(names)},
    )


def values(state):
    return {name: int(array) for name, array in state.arrays.items()}


def test_what_means_the_same_is_found_where_it_is_with_local_steps():
    found = saved_layout.rearranged(saved(PLAIN), LOCAL_STEPS, [OWN_SLOT])
    # Kernel, mean, counter and slot; the outer optimizer begins afresh.
    assert values(found) == {
        "variable/0": 0,
        "variable/1": 1,
        "variable/4": 2,
        "local/0": 3,
    }
    assert found.header == {
        "variables": LOCAL_STEPS,
        "locals": [OWN_SLOT],
        "updates": 9,
    }


def test_and_back_again():
    there = saved(LOCAL_STEPS, [OWN_SLOT])
    found = saved_layout.rearranged(there, PLAIN, [])
    # What was the outer optimizer's belongs to nothing here.
    assert values(found) == {
        "variable/0": 0,
        "variable/1": 1,
        "variable/2": 4,
        "variable/3": 5,
    }


def test_models_are_matched_by_their_order_over_those_that_are_gone():
    second = ["dense_8/kernel", "parameter", "float32", [3]]
    found = saved_layout.rearranged(
        saved([None, KERNEL, second]), [KERNEL, None, second], []
    )
    assert values(found) == {"variable/0": 0, "variable/2": 1}


def test_another_model_is_none_of_it():
    wider = [*KERNEL[:3], [4]]
    assert (
        saved_layout.rearranged(saved(PLAIN), [wider, *PLAIN[1:]], []) is None
    )
    assert saved_layout.rearranged(saved(PLAIN), [KERNEL, *PLAIN], []) is None
    other_type = [*KERNEL[:2], "float16", [2]]
    assert saved_layout.rearranged(saved(PLAIN), [other_type], []) is None


def test_a_slot_of_another_shape_begins_afresh():
    """Of Adafactor, say, which keeps rows and columns of one kernel."""
    slot = [*PLAIN[3][:3], [1, 2]]
    found = saved_layout.rearranged(saved(PLAIN), [*PLAIN[:3], slot], [])
    assert "variable/3" not in found.arrays
    assert values(found) == {f"variable/{k}": k for k in range(3)}
