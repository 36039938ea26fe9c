"""Bytes that workers exchange with the servers, of a model and a method."""

import tensorflow as tf

from tfdist.runtime.variables.sharding import ByteBalancer
from tfdist.simulation.gradients import assigned
from tfdist.simulation.gradients import num_bytes
from tfdist.simulation.gradients import row_bytes
from tfdist.simulation.virtual_local_steps import slots_of


def fixed_places(model, data):
    """Variables that no step changes, so that exchanges do not bring them.

    Frozen weights, and statistics that frozen layers or `Normalization` keep.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.

    Returns:
      Set of places in `model.variables`.
    """
    others = model.non_trainable_variables
    if not any(tf.as_dtype(v.dtype).is_floating for v in others):
        return set()
    kept = {id(others[place]) for place in assigned(model, data)}
    return {
        place
        for place, variable in enumerate(model.variables)
        if not variable.trainable and id(variable) not in kept
    }


def rows_pushed(model, data):
    """Bytes of gradients that are of some rows alone, such as an embedding's.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.

    Returns:
      Dict of places in `model.variables` to the bytes of a push.
    """
    places = {id(v): place for place, v in enumerate(model.variables)}
    trainable = model.trainable_variables
    return {
        places[id(trainable[place])]: size
        for place, size in row_bytes(model, data).items()
    }


def of_exchanges(model, method, num_servers, fixed, rows):
    """Bytes of a push and of a pull, by server.

    Args:
      model: A compiled `keras.Model`.
      method: A `Method`, resolved.
      num_servers: Servers, over which variables are spread as
        `ParameterServerStrategy` spreads them.
      fixed: Places in `model.variables` of those that are not sent.
      rows: What `rows_pushed` returned.

    Returns:
      Two lists of ints.
    """
    push, pull = [0] * num_servers, [0] * num_servers
    beside = _averaged_slots(model, method)
    if not _pushes_gradients(method):
        rows = {}
    for place, variable, size, server in _placed(model, num_servers):
        if place in fixed:
            continue
        slots = round(size * beside) if variable.trainable else 0
        pull[server] += size + slots
        push[server] += slots + rows.get(place, size) * (
            method.copies_per_push if variable.trainable else 1
        )
    return push, pull


def of_fetches(model, num_servers):
    """Bytes of parameters alone, by server; a list of ints."""
    fetch = [0] * num_servers
    for _, variable, size, server in _placed(model, num_servers):
        fetch[server] += size if variable.trainable else 0
    return fetch


def _placed(model, num_servers):
    """Place, variable, bytes and server of all that is on servers."""
    balancer = ByteBalancer(num_servers)
    for place, variable in enumerate(model.variables):
        if variable.trainable or tf.as_dtype(variable.dtype).is_floating:
            size = num_bytes([variable])
            yield place, variable, size, balancer.place(size)


def _pushes_gradients(method):
    """Whether workers push gradients as they are.

    Local steps push weights or changes of them, and a momentum of the worker's
    own (DANA's) is of all rows.
    """
    correction = method.correction
    on_worker = correction is not None and correction.on_worker
    return method.local_steps is None and not on_worker


def _averaged_slots(model, method):
    """Bytes of optimizer state that is averaged, per byte of parameters."""
    steps = method.local_steps
    if steps is None or not steps.average_optimizer_state:
        return 0.0
    parameters = model.trainable_variables
    model.optimizer.build(parameters)
    return num_bytes(slots_of(model.optimizer)) / num_bytes(parameters)
