"""Servers and all-reduce are asked for local steps in the same way."""

import inspect

import pytest

from tfdist.runtime.local_steps import communication
from tfdist.runtime.local_steps import ring_communication
from tfdist.runtime.local_steps import server_communication


def methods(kind):
    """The public methods of a class: name -> signature."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    "kind",
    [
        server_communication.ServerCommunication,
        ring_communication.RingCommunication,
    ],
)
def test_whoever_carries_local_steps_has_the_same_methods(kind):
    assert methods(kind) == methods(communication.Communication)
    # None of them is left to the interface.
    assert not inspect.isabstract(kind)
