"""Report of where a model's parts are, as the traced graph says."""

import collections
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdist import checks
from tfdist import model_optimizers
from tfdist import private_keras
from tfdist.placement import devices as devices_lib
from tfdist.placement import layers
from tfdist.placement import loops
from tfdist.placement import operations
from tfdist.placement import placed


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer of a report.

    Attributes:
      path: The layer's path in the model; "" for what is outside any layer
        (loss, metrics, the optimizer's arithmetic).
      kind: Its class.
      devices: Full names of the devices of its operations, forward and
        backward, the one with the most first.
      variable_devices: Those of its own variables.
      operations: How many operations the traced graph has of it.
      parameters: Elements of its own trainable variables.
      memory: Bytes of its variables, of what the optimizer keeps for them,
        and of the tensors that its forward pass keeps for the backward pass.
      output: Bytes that other layers take from it.
      seconds: Of one forward and one backward pass, if measured, else None.
    """

    path: str
    kind: str
    devices: tuple
    variable_devices: tuple
    operations: int
    parameters: int
    memory: int
    output: int
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Traffic from one device to another in one step.

    Attributes:
      source: The sender's full name.
      target: The receiver's.
      tensors: How many tensors (each counted once, however many operations
        of the receiver take it).
      bytes: Their size, for the batch that was traced.
    """

    source: str
    target: str
    tensors: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Report:
    """Places of everything; `str(report)` is a table and a picture.

    Attributes:
      rows: A `Row` per layer that has operations or variables.
      crossings: A `Crossing` per pair of devices, the largest first.
      training: Whether a whole training step was traced, or the forward pass.
      batch_size: Examples in the batch that was traced.
    """

    rows: tuple
    crossings: tuple
    training: bool
    batch_size: int

    def __str__(self):
        # Here, as only a reader needs it.
        from tfdist.placement import picture

        return picture.draw(self)


def report(
    model: keras.Model,
    data: Any = None,
    *,
    batch_size: int | None = None,
    costs: Any = None,
) -> Report:
    """Traces a model and says where its parts are.

    Args:
      model: A built `keras.Model`, placed or not.
      data: A batch as `train_step` takes it, `(x, y)` or `(x, y,
        sample_weight)` of arrays: the whole training step is traced (nothing
        is trained). Without it, the forward pass is traced for `model.inputs`.
      batch_size: Examples, where there is no data. Default 32.
      costs: A `CostGraph`, as `tfdist.placement.measure` gives, for a column
        of times.

    Returns:
      A `Report`.

    Raises:
      ValueError: Neither data nor known inputs; data and no `compile`; data
        and a model of a `tf.distribute` strategy.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Argument `model` must be a keras.Model. Received: model={model!r}"
        )
    if data is not None and not (isinstance(data, (tuple, list)) and data):
        raise ValueError(
            "Argument `data` must be a batch (x, y) or (x, y, sample_weight). "
            f"Received: data of type {type(data).__name__}"
        )
    if batch_size is not None:
        batch_size = checks.count("batch_size", batch_size)
    if data is not None and batch_size is not None:
        raise ValueError("batch_size came with data, which has its own.")
    if data is not None and not model.compiled:
        raise ValueError(
            f"Model {model.name!r} is not compiled: a training step needs a "
            "loss and an optimizer. Compile it, or leave out data."
        )
    strategy = private_keras.strategy_of(model)
    if data is not None and strategy is not None:
        raise ValueError(
            f"Model {model.name!r} belongs to a {type(strategy).__name__}, "
            "whose training step "
            "is more than the model's: leave out data."
        )
    specs, size = _specs(model, data, batch_size or 32)
    scopes = {}

    def heard(layer, scope):
        scopes.setdefault(scope, layer)

    if data is None:

        def step(x):
            return model(x, training=False)
    else:

        def step(batch):
            return model.train_step(batch)

    all_layers = [part.layer for part in layers.parts(model)]
    with placed.watched(all_layers), placed.listening(heard):
        concrete = tf.function(step, autograph=False).get_concrete_function(
            specs
        )
    return _read(model, concrete.graph, scopes, data is not None, size, costs)


def _specs(model, data, batch_size):
    if data is not None:
        specs = keras.tree.map_structure(
            lambda x: (
                None
                if x is None
                else tf.TensorSpec.from_tensor(tf.convert_to_tensor(x))
            ),
            tuple(data),
        )
        first = keras.tree.flatten(specs)[0]
        return specs, int(first.shape[0] or 0)
    inputs = getattr(model, "inputs", None)
    if not inputs:
        raise ValueError(
            f"Model {model.name!r} does not say what its inputs are: give "
            "report a batch of data."
        )
    specs = [tf.TensorSpec([batch_size, *x.shape[1:]], x.dtype) for x in inputs]
    structure = getattr(model, "input", None)
    if structure is None or len(specs) == 1:
        return specs[0] if len(specs) == 1 else specs, batch_size
    return keras.tree.pack_sequence_as(structure, specs), batch_size


def _read(model, graph, scopes, training, batch_size, costs):
    nodes = graph.get_operations()
    owners = {op.name: _owner(op.name, scopes) for op in nodes}
    places = effective_places(graph)
    model_parts = layers.parts(model)
    ops = collections.defaultdict(collections.Counter)
    kept = collections.Counter()
    sent = collections.Counter()
    crossing = collections.defaultdict(dict)
    for op in nodes:
        owner = owners[op.name]
        if op.type != "Placeholder":
            ops[id(owner)][places[op.name]] += 1
        for tensor in op.outputs:
            size = _bytes(tensor)
            targets = set()
            for consumer in tensor.consumers():
                targets.add(places[consumer.name])
            for target in targets - {places[op.name]}:
                if op.type != "Placeholder" or tensor.dtype != tf.resource:
                    crossing[places[op.name], target][tensor.name] = size
            if owner is None or "gradient_tape/" in op.name:
                continue
            users = {
                "backward"
                if "gradient_tape/" in consumer.name
                else id(owners[consumer.name])
                for consumer in tensor.consumers()
            }
            if op.type not in ("ReadVariableOp", "Const", "Placeholder"):
                kept[id(owner)] += size * ("backward" in users)
                sent[id(owner)] += size * bool(users - {"backward", id(owner)})
    for name, size in loops.kept_bytes(graph).items():
        if owners[name] is not None:
            kept[id(owners[name])] += size
    slots = _slot_bytes(model)
    seconds = collections.Counter()
    for node in costs.nodes if costs is not None else ():
        # The second call of a shared layer is "name#2".
        seconds[node.name.partition("#")[0]] += node.seconds
    rows = []
    for part in model_parts:
        own = _own_variables(part.layer)
        counted = ops.get(id(part.layer), collections.Counter())
        if not own and not counted and part.path:
            continue
        rows.append(
            Row(
                path=part.path,
                kind=type(part.layer).__name__,
                devices=tuple(d for d, _ in counted.most_common()),
                variable_devices=tuple(
                    dict.fromkeys(v.value.device for v in own)
                ),
                operations=sum(counted.values()),
                parameters=sum(_elements(v) for v in own if v.trainable),
                memory=sum(
                    _elements(v) * tf.as_dtype(v.dtype).size
                    + slots.get(id(v), 0)
                    for v in own
                )
                + kept[id(part.layer)],
                output=sent[id(part.layer)],
                seconds=seconds.get(part.path),
            )
        )
    outside = ops.get(id(None), collections.Counter())
    if outside:
        rows.append(
            Row(
                path="",
                kind="(outside any layer)",
                devices=tuple(d for d, _ in outside.most_common()),
                variable_devices=(),
                operations=sum(outside.values()),
                parameters=0,
                memory=0,
                output=0,
            )
        )
    crossings = [
        Crossing(a, b, len(tensors), sum(tensors.values()))
        for (a, b), tensors in crossing.items()
        if a and b
    ]
    crossings.sort(key=lambda c: -c.bytes)
    return Report(tuple(rows), tuple(crossings), training, batch_size)


def _owner(name, scopes):
    """The layer whose scope is the innermost in an operation's name."""
    while name:
        name = name.rpartition("/")[0]
        for prefix in ("", "gradient_tape/"):
            if name.startswith(prefix) and name[len(prefix) :] in scopes:
                return scopes[name[len(prefix) :]]
    return None


def effective_places(graph):
    """The device of each operation of a graph, as TensorFlow will decide it.

    Args:
      graph: A traced graph.

    Returns:
      A dict from an operation's name to a full name of a device, "" for
      arguments. An operation without a device of its own is where the
      variable is that it reads or assigns; a constant is where it is used; all
      else is on the default device.
    """
    places, undecided = {}, []
    default = devices_lib.default()
    for op in graph.get_operations():
        place = op.device
        if not place:
            for tensor in op.inputs:
                if tensor.dtype == tf.resource:
                    place = operations.place_of(tensor)
                    break
        places[op.name] = place
        if not place:
            undecided.append(op)
    for op in reversed(undecided):
        if op.type == "Placeholder":
            continue
        users = {
            places[consumer.name]
            for tensor in op.outputs
            for consumer in tensor.consumers()
        }
        alone = not op.inputs and len(users) == 1
        places[op.name] = (users.pop() if alone else "") or default
    return places


def _bytes(tensor):
    if tensor.dtype in (tf.resource, tf.variant) or not tensor.shape.rank:
        return tensor.dtype.size if tensor.shape.rank == 0 else 0
    elements = tensor.shape.num_elements()
    return (elements or 0) * tensor.dtype.size


def _elements(variable):
    count = 1
    for length in variable.shape:
        count *= length or 0
    return count


def _own_variables(layer):
    """The variables of a layer that are not those of one of its parts."""
    below = {
        id(variable)
        for part in layers.children(layer)
        for variable in getattr(part, "variables", ())
    }
    return [v for v in getattr(layer, "variables", ()) if id(v) not in below]


def _slot_bytes(model):
    """Bytes that optimizers keep, by the id of the variable they are for."""
    kept = collections.Counter()
    # One optimizer may list those of another one that it holds.
    slots = {
        id(slot): (slot, variable)
        for optimizer in model_optimizers.update_rules_of(model)
        for slot, variable in model_optimizers.slots_of(optimizer)
    }
    for slot, variable in slots.values():
        size = tf.as_dtype(slot.dtype).size
        kept[id(variable)] += _elements(slot) * size
    return kept
