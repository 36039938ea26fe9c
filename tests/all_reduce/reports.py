"""Two workers that run programs, and what each reports."""

from tests.multi_process import real_cluster

# For a machine that does other things as well.
SECONDS = 800.0


def of_two_workers(zygote, tmp_path_factory, target, **arguments):
    """Runs a target of `tests.all_reduce` on two workers; returns reports.

    Args:
        zygote: A `Zygote`.
        tmp_path_factory: As of pytest.
        target: Of `tests.all_reduce`, or with the name of its package.
        **arguments: Of the target.
    """
    with real_cluster.ClusterUnderTest(
        zygote, tmp_path_factory.mktemp("programs"), num_ps=0, num_workers=2
    ) as cluster:
        if not target.startswith("tests."):
            target = f"tests.all_reduce.{target}"
        workers = cluster.start_workers(target, **arguments)
        cluster.finish(SECONDS)
        return [worker.report() for worker in workers]


def both(reports, name):
    """The report of a program, which must be the same on both workers."""
    first, second = (report[name] for report in reports)
    assert first == second
    return first


def trained(running, target, directory, epochs):
    """Trains with checkpoints; returns the reports of both workers.

    Args:
        running: what the fixture `cluster` has made.
        target: of `tests`, with arguments `directory` and `epochs`.
        directory: of the checkpoints.
        epochs: of `fit`.
    """
    workers = running.start_workers(
        f"tests.{target}", directory=directory, epochs=epochs
    )
    running.finish()
    return [worker.report() for worker in workers]


def whole_and_parts(cluster, target):
    """Trains for four epochs, and for two and then four in another directory.

    Args:
        cluster: the fixture.
        target: of `tests`, with arguments `directory` and `epochs`.

    Returns:
        The reports of both workers, of the first and of the last training.
    """
    running = cluster(num_ps=0, num_workers=2)
    whole = trained(running, target, "whole", 4)
    trained(running, target, "parts", 2)
    parts = trained(running, target, "parts", 4)
    assert [report["resumed"] for report in parts] == [2, 2]
    return whole, parts
