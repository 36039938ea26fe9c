"""Placement without a user's hand: costs, then a partitioner."""

import collections.abc
from typing import Any

import keras

from tfdist.placement import costs as costs_lib
from tfdist.placement import devices as devices_lib
from tfdist.placement.calls import calls_of
from tfdist.placement.graph import CostGraph
from tfdist.placement.graph import Devices
from tfdist.placement.partition import Partition
from tfdist.placement.partition import partition


def choose(
    model: keras.Model,
    devices: Any = None,
    *,
    memory_limit: Any = None,
    data: Any = None,
    costs: Any = None,
    batch_size: int = 32,
    latency_seconds: float = 2e-5,
    bytes_per_second: float = 1e10,
    method: str = "auto",
    objective: str | None = None,
    pipeline: Any = None,
    evaluations: int = 1000,
    seed: int = 0,
) -> Partition:
    """Finds a placement of a model's layers, and does not carry it out.

    Args:
      model: A built sequential or functional `keras.Model`.
      devices: Names of devices, or a `tfdist.placement.Devices`; None: all
        GPUs of this process, or all its logical CPUs if it has none.
      memory_limit: Bytes of each device, or one number for all.
      data: Inputs of one (micro-)batch: layers are measured with them. Without
        data or costs, costs are estimated for `batch_size`.
      costs: A `CostGraph` with a node per call, as `measure` gives.
      batch_size: Examples, where costs are estimated.
      latency_seconds: Of a transfer between devices.
      bytes_per_second: Of the link between devices (bytes, not bits). The
        default is that of PCIe.
      method: "auto", "chain", "etf", "sct", "topo" or "search"; see
        `tfdist.placement.partition`.
      objective: "step" (the time of one step) or "throughput" (of a pipeline:
        its slowest stage).
      pipeline: For "throughput": how many micro-batches are in flight.
      evaluations: Placements that "search" looks at.
      seed: Of "search".

    Returns:
      A `Partition`; its `placement` is what `place` takes.

    Raises:
      ValueError: The model is of another kind, a device does not exist, or no
        placement stays within the memory limits.
    """
    calls = calls_of(model)[0]
    if costs is None:
        costs = (
            costs_lib.estimate(model, batch_size)
            if data is None
            else costs_lib.measure(model, data)
        )
    if not isinstance(costs, CostGraph):
        raise ValueError(
            f"Argument `costs` must be a CostGraph. Received: costs={costs!r}"
        )
    if not isinstance(devices, Devices):
        devices = Devices(
            tuple(_names(devices)),
            memory_limit,
            latency_seconds=latency_seconds,
            bytes_per_second=bytes_per_second,
        )
    elif memory_limit is not None:
        raise ValueError(
            "memory_limit came with Devices, which have their own."
        )
    found = partition(
        costs,
        devices,
        method=method,
        pipeline=pipeline,
        objective=objective,
        evaluations=evaluations,
        seed=seed,
    )
    known = {call.operation.name for call in calls}
    missing = [n for n in found.placement if n.partition("#")[0] not in known]
    if missing:
        raise ValueError(
            f"costs have nodes that model {model.name!r} has not: {missing}."
        )
    return found


def layers_of(found):
    """Returns a device for each layer of a `Partition`, as `place` takes it."""
    return {
        name: device
        for name, device in found.placement.items()
        if "#" not in name
    }


def _names(devices):
    if devices is None:
        return devices_lib.of_this_process()
    if isinstance(devices, str) or not isinstance(
        devices, collections.abc.Iterable
    ):
        raise ValueError(
            "Argument `devices` must be a list of names of devices. Received: "
            f"devices={devices!r}"
        )
    return [devices_lib.resolve(device, "devices") for device in devices]
