"""Tables on real servers: every gradient counts once, wherever rows are."""

import json
import shutil

import numpy as np
import pytest

from tests.multi_process import table_tasks
from tests.multi_process.real_cluster import ClusterUnderTest
from tests.runtime.variables.row_index_test import partitions_of
from tests.waits import wait_until
from tfdist.runtime.variables.partitions import Partitions

STEPS = 100


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """What two workers report that pushed rows to two servers."""
    with ClusterUnderTest(
        zygote, tmp_path_factory.mktemp("tables"), num_ps=2, num_workers=2
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers("table_tasks:push_rows", steps=STEPS)
        for worker in workers:
            worker.expect("has made one step")
        for worker in workers:
            cluster.tell(f"go on {worker.label}")
        cluster.finish()
        yield [worker.report() for worker in workers], cluster.directory


@pytest.mark.smoke
def test_rows_are_the_sum_of_all_pushes(reports):
    """SGD at a rate of one: minus the number of times that an id came."""
    ids = [table_tasks.ids_of(worker, STEPS) for worker in range(2)]
    counts = np.bincount(np.ravel(ids), minlength=table_tasks.ROWS)
    expected = -np.repeat(counts[:, None], table_tasks.WIDTH, axis=1)
    assert 0 < np.count_nonzero(counts) < table_tasks.ROWS
    for report in reports[0]:
        np.testing.assert_array_equal(report["rows"], expected)


@pytest.mark.smoke
def test_exported_rows_are_those_of_look_ups(reports):
    found, directory = reports
    exported = directory / "exported"
    index = json.loads((exported / "index.json").read_text())
    (table,) = index["tables"]
    assert table["name"] == found[0]["name"]
    assert index["updates"] == 2 * STEPS
    rows = np.concatenate(
        [np.load(exported / piece["file"]) for piece in table["pieces"]]
    )
    np.testing.assert_array_equal(rows, found[0]["rows"])
    # The chief's alone.
    assert len(list(exported.iterdir())) == 1 + len(table["pieces"])


@pytest.mark.smoke
def test_servers_share_the_table(reports):
    for report in reports[0]:
        assert report["updates"] == [2 * STEPS] * 2
        first, second = report["bytes_per_server"]
        # All else is some counters.
        assert abs(first - second) < 0.1 * first


@pytest.fixture(scope="module")
def trajectories(zygote, tmp_path_factory):
    """By number of servers, the report of a worker that trains by all rules."""
    found = {}
    for servers in (1, 2, 3):
        with ClusterUnderTest(
            zygote,
            tmp_path_factory.mktemp(f"on-{servers}"),
            num_ps=servers,
            num_workers=1,
        ) as cluster:
            cluster.start_servers()
            (worker,) = cluster.start_workers("table_tasks:trajectories")
            cluster.finish(240.0)
            found[servers] = worker.report()
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", table_tasks.RATES)
def test_number_of_servers_makes_no_difference(trajectories, optimizer):
    one, *others = (report[optimizer] for report in trajectories.values())
    for other in others:
        assert other["first"] == one["first"]
        for key in ("losses", "rows"):
            np.testing.assert_allclose(
                other[key], one[key], rtol=1e-6, atol=1e-7
            )


@pytest.mark.nightly
def test_dynamic_rows_are_the_sum_of_all_pushes(zygote, tmp_path_factory):
    with ClusterUnderTest(
        zygote, tmp_path_factory.mktemp("dynamic"), num_ps=2, num_workers=2
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            "table_tasks:push_rows", steps=STEPS, dynamic=True
        )
        for worker in workers:
            worker.expect("has made one step")
        for worker in workers:
            cluster.tell(f"go on {worker.label}")
        cluster.finish()
        reports = [worker.report() for worker in workers]
        exported = cluster.directory / "exported"
        index = json.loads((exported / "index.json").read_text())
        pieces = [
            [np.load(exported / piece[key]) for key in ("ids", "file")]
            for piece in index["tables"][0]["pieces"]
        ]
    ids = [table_tasks.ids_of(worker, STEPS) for worker in range(2)]
    times = np.bincount(np.ravel(ids), minlength=table_tasks.ROWS)
    expected = -np.repeat(times[:, None], table_tasks.WIDTH, axis=1)
    for report in reports:
        np.testing.assert_array_equal(report["rows"], expected)
        used = [counts["used"] for counts in report["counts"]]
        assert sum(used) == np.count_nonzero(times) and min(used) > 0
        assert used == [counts["admitted"] for counts in report["counts"]]
    found, rows = (np.concatenate(one) for one in zip(*pieces, strict=True))
    assert sorted(found) == np.flatnonzero(times).tolist()
    np.testing.assert_array_equal(rows, expected[found])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("optimizer", "tables"), [("adam", 3), ("dynamic adam", 5)]
)
def test_checkpoint_of_two_servers_is_resumed_on_others_to_the_bit(
    zygote, tmp_path_factory, optimizer, tables
):
    directory = tmp_path_factory.mktemp("checkpoints")

    def run(servers, epochs):
        # Each goes on from the first epoch, in a directory of its own.
        own = tmp_path_factory.mktemp(f"on-{servers}") / "checkpoints"
        if epochs > 1:
            shutil.copytree(directory, own)
        with ClusterUnderTest(
            zygote,
            tmp_path_factory.mktemp("cluster"),
            num_ps=servers,
            num_workers=1,
        ) as cluster:
            cluster.start_servers()
            (worker,) = cluster.start_workers(
                "table_tasks:resume",
                directory=str(directory if epochs == 1 else own),
                epochs=epochs,
                optimizer=optimizer,
            )
            cluster.finish(240.0)
            return worker.report()

    saved = run(2, epochs=1)
    assert saved["resumed"] == 0
    # The rows, and Adam's two slots; of dynamic rows ids and last updates.
    assert len(saved["trained"]) == tables
    for name, values in saved["trained"].items():
        assert len(np.unique(values)) > (1 if name == "updated" else 100)
    found = {servers: run(servers, epochs=2) for servers in (1, 2, 3)}
    for servers, report in found.items():
        assert report["resumed"] == 1
        assert report["restored"] == saved["trained"]
        assert report["updates"] == [16] * servers
        for name, values in report["trained"].items():
            assert name == "ids" or values != saved["trained"][name]
            np.testing.assert_allclose(
                values, found[2]["trained"][name], rtol=1e-6, atol=1e-7
            )


# Of steps until each id of a worker has come again.
CYCLE = 50


def pushes_of(worker, cycles):
    """How often a worker has pushed each id in so many cycles."""
    ids = table_tasks.cycle_of_ids(worker)
    return cycles * np.bincount(ids.ravel(), minlength=table_tasks.ROWS)


WAYS = {
    "none": None,
    "at one moment": {},
    # Three stripes of 1,536 rows of 8 bytes.
    "by stripes": {"stripe_bytes": 4096},
}


def servers_of(ids, dynamic):
    """The one of two servers that has each id's row."""
    if dynamic:
        return (partitions_of(ids) % np.uint64(2)).astype(int)
    return Partitions(table_tasks.ROWS, 2).place(ids)[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "dynamic"),
    [*((way, False) for way in WAYS), ("none", True), ("by stripes", True)],
)
def test_rows_of_a_killed_server_are_what_is_counted(
    cluster, tmp_path, way, dynamic
):
    """Every update is in a row, or is counted as lost there.

    SGD at a rate of one, and gradients of one: a row is minus the number of
    updates that are in it.
    """
    made = cluster(num_ps=2, num_workers=2)
    kept = tmp_path / "kept"

    def serve(index):
        settings = WAYS[way]
        if settings is not None:
            settings = {**settings, "directory": str(kept), "every": 0.3}
        if dynamic and settings and "stripe_bytes" in settings:
            settings["stripe_bytes"] = 1 << 17
        return made.start(
            "ps", index, "recovery_tasks:serve", **(settings or {})
        )

    first, _ = [serve(index) for index in range(2)]
    workers = made.start_workers(
        "table_tasks:push_same_rows_until_told", dynamic=dynamic
    )
    deaths = 2
    for _ in range(deaths):
        for worker in workers:
            worker.wait_for_steps(worker.steps() + 30)
        if WAYS[way] is not None:
            numbers = kept.glob("ps-0-of-2/[0-9]*")
            newest = max((int(path.name) for path in numbers), default=-1)
            wait_until(
                lambda n=newest: any(
                    int(path.name) > n for path in kept.glob("ps-0-of-2/[0-9]*")
                ),
                "a snapshot of these steps is there",
            )
        first.kill()
        first = serve(0)
        for worker in workers:
            worker.expect(r"goes on after [\d.]+ s without /job:ps/task:0")
            worker.wait_for_steps(worker.steps() + 10)
    made.tell("stop")
    made.finish()
    reports = [worker.report() for worker in workers]
    rows = np.array(reports[0]["rows"])
    np.testing.assert_array_equal(reports[1]["rows"], rows)
    least = most = 0
    for event, other in zip(
        *(report["lost_by_rows"] for report in reports), strict=True
    ):
        assert event == other and list(event) == ["/job:ps/task:0"]
        found = event["/job:ps/task:0"]
        # Without a snapshot the last death takes all with it.
        start = (0, 0) if way == "none" else (least, most)
        least, most = start[0] + found[0], start[1] + found[1]
    assert 0 < least <= most
    if way != "by stripes":
        assert least == most
    same = np.isin(np.arange(len(rows)), table_tasks.SAME_IDS)
    assert np.all(rows[~same] == 0)
    shard = servers_of(np.arange(len(rows)), dynamic)
    updates = reports[0]["updates"]
    assert np.all(rows[same & (shard == 1)] == -updates[1])
    missing = updates[0] + rows[same & (shard == 0)]
    assert (missing.min(), missing.max()) == (least, most)
    for report in reports:
        lost = report["counts"]["lost"]
        # At most a gradient for each death.
        assert lost[0] <= deaths and lost[1] <= deaths


def _holds_all(path):
    """Whether a snapshot was made when workers had named all variables."""
    try:
        meta = (path / "meta.json").read_text()
    except FileNotFoundError:
        return False
    # The table, the counter of steps, and the counts of gradients.
    names = ("/variable/0/", '/variable/1"', "/gradients/")
    return all(name in meta for name in names) and "rows-0.json" in {
        file.name for file in path.iterdir()
    }


@pytest.mark.nightly
def test_rows_are_what_snapshots_say_when_all_were_killed(cluster, tmp_path):
    made = cluster(num_ps=2, num_workers=2)
    kept = tmp_path / "kept"

    def start():
        servers = [
            made.start(
                "ps",
                index,
                "recovery_tasks:serve",
                directory=str(kept),
                every=0.3,
                stripe_bytes=4096,
            )
            for index in range(2)
        ]
        task = "table_tasks:push_same_rows_until_told"
        return servers, made.start_workers(task)

    servers, workers = start()
    for worker in workers:
        worker.wait_for_steps(50)
    for index in range(2):
        wait_until(
            lambda k=index: any(
                _holds_all(path) for path in kept.glob(f"ps-{k}-of-2/[0-9]*")
            ),
            "there is a snapshot of all that there is",
        )
    for task in (*workers, *servers):
        task.kill()
    servers, workers = start()
    lost = []
    for server in servers:
        found = server.expect(
            r"rows of tables lack the last (\d+) to (\d+) of these updates"
        )
        lost.append(tuple(map(int, found.groups())))
    for worker in workers:
        worker.wait_for_steps(10)
    made.tell("stop")
    made.finish()
    report = workers[0].report()
    rows = np.array(report["rows"])
    same = np.isin(np.arange(len(rows)), table_tasks.SAME_IDS)
    shard, _ = Partitions(table_tasks.ROWS, 2).place(np.arange(len(rows)))
    for index in range(2):
        missing = report["updates"][index] + rows[same & (shard == index)]
        assert (missing.min(), missing.max()) == lost[index]
    assert np.all(rows[~same] == 0)


@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", [False, True])
def test_kill_9_in_a_look_up_or_push_loses_no_row_of_the_others(
    cluster, dynamic
):
    made = cluster(num_ps=2, num_workers=3)
    made.start_servers()

    def start(index):
        task = "table_tasks:push_rows_until_told"
        return made.start("worker", index, task, dynamic=dynamic)

    others, lives = [start(0), start(1)], [start(2)]
    kills = 3
    for kill in range(kills):
        # Nearly all of its time is spent in steps.
        lives[-1].wait_for_steps(10 + 7 * kill)
        before = [other.steps() for other in others]
        lives[-1].kill()
        for other, steps in zip(others, before, strict=True):
            other.wait_for_steps(steps + 10)
        lives.append(start(2))
    lives[-1].wait_for_steps(20)
    made.tell("stop")
    made.finish()
    rows = np.array(others[0].report()["rows"])
    np.testing.assert_array_equal(others[1].report()["rows"], rows)
    pushed = 1 - rows[:, 0]
    for worker, other in enumerate(others):
        cycles, rest = divmod(other.steps(), CYCLE)
        last = table_tasks.cycle_of_ids(worker)[:rest].ravel()
        pushed -= pushes_of(worker, cycles)
        pushed -= np.bincount(last, minlength=table_tasks.ROWS)
    # What is left is of the one that was killed, some of it in a push.
    assert np.all(pushed >= 0)
    assert np.all(pushed[pushes_of(2, 1) == 0] == 0)
    done = sum(life.steps() for life in lives)
    assert 0 <= pushed.sum() - done * table_tasks.BATCH
    assert pushed.sum() - done * table_tasks.BATCH <= kills * table_tasks.BATCH
