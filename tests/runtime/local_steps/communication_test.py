"""Servers and all-reduce are asked for local steps in the same way."""

import inspect

from tfdist.runtime.local_steps import ring_communication
from tfdist.runtime.local_steps import server_communication


def methods(kind):
    """The public methods of a class: name -> signature."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_whoever_carries_local_steps_has_the_same_methods():
    assert methods(ring_communication.RingCommunication) == methods(
        server_communication.ServerCommunication
    )
