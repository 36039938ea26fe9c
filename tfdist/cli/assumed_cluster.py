"""The virtual cluster on which a model trains: measured, given or assumed."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from absl import flags

from tfdist.cli import model_and_data
from tfdist.cli import simulation_flags
from tfdist.cli import user_function
from tfdist.cli import virtual_cluster


@dataclasses.dataclass(frozen=True)
class AssumedCluster:
    """A virtual cluster and where its figures come from.

    Attributes:
        arguments: arguments of `simulate` that describe it.
        single_compute: the `ComputeTime` of a training step on one machine.
        local_compute: that of a worker that steps with an optimizer of its
            own: of a gradient and, where that was measured, of this step.
        description: text for a person, one paragraph.
    """

    arguments: dict[str, Any]
    single_compute: Any
    local_compute: Any
    description: str


def make(
    values: flags.FlagValues,
    trained: model_and_data.ModelAndData,
    num_workers: int | Sequence[int],
) -> AssumedCluster:
    """Returns the cluster of `tfdist simulate` and `tfdist compare`.

    A task has the times that its flags say. The user's own model is measured
    on this machine, as `tfdist advise` does, so that all three agree.

    Args:
        values: flags that `simulation_flags.check` accepts.
        trained: what is trained.
        num_workers: the number of workers, or all that are simulated.

    Raises:
        UsageError: if a flag does not fit, or names a worker that is not
            there.
    """
    cluster = virtual_cluster.make(values, num_workers)
    if values.model is None:
        overhead = (values.overhead_ms or 0.0) / 1e3
        network = dataclasses.replace(
            cluster.network, overhead_seconds=overhead
        )
        return AssumedCluster(
            {**cluster.arguments, "network": network},
            cluster.undisturbed,
            cluster.arguments["compute"],
            describe(values, overhead_seconds=overhead),
        )
    simulation = user_function.import_quietly("tfdist.simulation")
    measurement = simulation.measure(
        trained.model_fn_of(trained.learning_rate, trained.momentum or 0.0)(),
        *trained.train[:2],
        batch_size=trained.batch_size,
        progress=simulation_flags.show_progress(values),
    )
    overhead = simulation_flags.overhead_seconds(values)
    network = simulation.prediction.Cluster(
        cluster.num_servers, cluster.network, overhead_seconds=overhead
    ).full_network(measurement)
    update = simulation.Constant(update_seconds(values, measurement))
    if is_given(values):
        single = cluster.undisturbed + update
    else:
        cluster, alone = (
            virtual_cluster.make(values, num_workers, base)
            for base in (
                simulation.Recorded([measurement.compute_seconds]),
                simulation.Constant(measurement.step_seconds),
            )
        )
        single = alone.undisturbed
    return AssumedCluster(
        {**cluster.arguments, "network": network},
        single,
        cluster.compute + update,
        describe(values, measurement, overhead)
        + " With local steps, peer_to_peer or gossip each step of a worker "
        f"takes its own optimizer {1e3 * update.seconds:.3g} ms more.",
    )


def update_seconds(values: flags.FlagValues, measurement: Any) -> float:
    """Returns how much longer a step is with an update by the worker itself.

    What was recorded of local steps has their updates in it.

    Args:
        values: flags that `simulation_flags.check` accepts.
        measurement: the `Measurement` of the model.
    """
    simulation = user_function.import_quietly("tfdist.simulation")
    if values.trace is not None:
        if simulation.read_trace(values.trace).has_local_steps:
            return 0.0
    return measurement.update_seconds


def is_given(values: flags.FlagValues) -> bool:
    """Whether flags say how long a gradient takes."""
    return values["compute"].present or values.trace is not None


def describe(
    values: flags.FlagValues,
    measurement: Any = None,
    overhead_seconds: float = 0.0,
) -> str:
    """Returns what a cluster is taken to be, and which flags change it.

    Args:
        values: parsed flags.
        measurement: the `Measurement` of the model, or `None`.
        overhead_seconds: what an exchange takes beside the network.
    """
    here = "measured on this machine"
    if values.trace is not None:
        compute = f"takes what the records in {values.trace} say (--trace)"
    elif measurement is not None and not is_given(values):
        source = f"{here}; --compute for other machines"
        if "step_seconds" in values and values.step_seconds is not None:
            source = "--step_seconds"
        compute = f"takes {1e3 * measurement.compute:.3g} ms ({source})"
    else:
        source = "given" if is_given(values) else "assumed"
        compute = f"takes {values.compute} seconds ({source}; --compute)"
    disturbed = [
        f"--{name}={text}"
        for name in ("slow", "straggler", "failure")
        for text in values[name].value
    ]
    if values.tail is not None:
        disturbed.append(f"--tail={values.tail}")
    if disturbed:
        compute += f", with {', '.join(disturbed)}"
    update = f"{values.server_ms:g} ms (--server_ms)"
    if measurement is not None and not values.server_ms:
        shared = measurement.update_seconds / values.num_servers
        update = f"{1e3 * shared:.3g} ms ({here}; --server_ms)"
    links = "links without a limit"
    if values.bandwidth_gbps is not None:
        links = f"links of {values.bandwidth_gbps:g} Gbit/s per direction"
    if values.server_bandwidth_gbps is not None:
        links += f", a server's of {values.server_bandwidth_gbps:g} Gbit/s"
    servers = "server" if values.num_servers == 1 else "servers"
    return (
        f"The cluster: {values.num_servers} {servers} (--num_servers). A "
        f"gradient {compute}; an update occupies a server for {update}; a "
        f"message takes {values.latency_ms:g} ms (--latency_ms) over {links} "
        "(--bandwidth_gbps, --server_bandwidth_gbps), and an exchange "
        f"{1e3 * overhead_seconds:g} ms besides (--overhead_ms)."
    )
