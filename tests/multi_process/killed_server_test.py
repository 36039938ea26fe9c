"""A server that is killed in the middle of something, at a chosen moment."""

import contextlib
import pathlib
import signal
import time

import keras
import pytest

from tests.multi_process import killed_server_tasks
from tests.multi_process import tasks
from tests.multi_process.server_failure_test import check_exact
from tests.multi_process.server_recovery_test import go_on
from tests.waits import wait_until
import tfdist
from tfdist.callbacks import checkpoint_files

pytestmark = pytest.mark.nightly

_SNAPSHOT_EVERY = 0.2


def wait_for_text(path):
    """Waits until a file has content; returns that."""
    return wait_until(
        lambda: path.exists() and path.read_text(), f"{path} has content"
    )


class Scene:
    """A cluster that trains."""

    def __init__(self, made, **arguments):
        """Starts it.

        Args:
            made: a `ClusterUnderTest`.
            **arguments: of `killed_server_tasks.train`.
        """
        self.made = made
        self.servers = [self._start(index) for index in range(made.num_ps)]
        self.workers = made.start_workers(
            "killed_server_tasks:train", **arguments
        )
        go_on(self.workers, 5)

    def _start(self, index):
        return self.made.start(
            "ps",
            index,
            "recovery_tasks:serve",
            directory=str(self.made.directory / "kept"),
            every=_SNAPSHOT_EVERY,
        )

    def kill_and_restart(self, index):
        """Kills a server; returns when both workers train with its next."""
        self.servers[index].kill()
        self.servers[index] = self._start(index)
        for worker in self.workers:
            worker.expect(
                r"goes on after [\d.]+ s without /job:ps/task:" + str(index)
            )

    def kill_in_the_midst_of_an_update(self, index):
        """Of an update of its two variables a server has applied one."""
        armed = self.made.directory / f"apply-{index}"
        armed.touch()
        applying = self.made.directory / f"applying-{index}"
        assert float(wait_for_text(applying)) < 0
        armed.unlink()
        # A snapshot would have come by now, but that it needs the lock.
        time.sleep(4 * _SNAPSHOT_EVERY)
        self.kill_and_restart(index)
        go_on(self.workers, 5)

    @contextlib.contextmanager
    def chief_does(self, name, stopped=None):
        """Scope in which the chief is in the middle of something.

        Args:
            name: of what it does, as in `killed_server_tasks`.
            stopped: number of the server that is stopped before, so that it
                is not over before that server is killed.
        """
        chief = self.workers[0]
        self.made.tell(name)
        chief.expect(f"about to {name}")
        if stopped is not None:
            self.servers[stopped].send(signal.SIGSTOP)
        self.made.tell(f"{name} now")
        if stopped is not None:
            chief.expect(f"in {name}")
        yield
        chief.expect(f"over: {name}")


def differences(files, placement):
    """Of each checkpoint, by how many updates servers differ.

    Args:
        files: a `CheckpointFiles`.
        placement: number of the server of each parameter, a list.
    """
    found = []
    for number in files.numbers():
        there, state = files.newest(number)
        assert there == number, f"checkpoint {number} is not usable"
        first, second = updates_in(
            [
                state.arrays[f"variable/{ordinal}"]
                for ordinal, variable in enumerate(state.header["variables"])
                if variable[1] == "parameter"
            ],
            placement,
        )
        assert state.header["updates"] == max(first, second)
        found.append(first - second)
    return found


def updates_in(parameters, placement):
    """How many updates each server has made of its parameters.

    All of them whole: the same number of each.

    Args:
        parameters: list of arrays.
        placement: number of the server of each, a list.
    """
    values = [set(), set()]
    for server, value in zip(placement, parameters, strict=True):
        values[server] |= {-float(x) for x in value}
    ((first,), (second,)) = values
    return first, second


def local_model():
    """A strategy of one process, and a model like that of the cluster."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0)
    model = tasks.build_sum_of_weights(
        strategy, optimizer, killed_server_tasks.shapes()
    )
    with strategy.scope():
        optimizer.build(model.trainable_variables)
    return strategy, model


def test_killed_while_it_applies_is_pulled_from_and_is_saved(cluster):
    scene = Scene(cluster(num_ps=2, num_workers=2))
    directory = pathlib.Path(scene.made.directory)
    files = checkpoint_files.CheckpointFiles(directory / "checkpoints", 10)
    with scene.chief_does("save 0"):
        pass

    scene.kill_in_the_midst_of_an_update(1)

    with scene.chief_does("pull 0", stopped=0):
        scene.kill_and_restart(0)
    go_on(scene.workers)

    # While it is read, the lock of the other server is held.
    with scene.chief_does("save 1", stopped=1):
        scene.kill_and_restart(1)
    go_on(scene.workers)

    with scene.chief_does("save weights 0", stopped=0):
        scene.kill_and_restart(0)
    with scene.chief_does("save 2"):
        pass
    scene.made.tell("stop")
    scene.made.finish()

    check_exact([worker.report() for worker in scene.workers])
    for worker in scene.workers:
        # What a server has lost is not on its way to it any more.
        assert "What is read from the servers holds" not in worker.output()
    report = scene.workers[0].report()
    # A stopped server may break the connection first, and has lost nothing.
    assert [servers for servers, _ in report["recoveries"] if servers] == [
        [f"/job:ps/task:{index}"] for index in (1, 0, 1, 0)
    ]
    check_saved(files, directory / killed_server_tasks.WEIGHTS, report)


def check_saved(files, weights, report):
    """What has been saved is whole, and of one moment on both servers."""
    placement = report["placement"]
    # Servers differ by what was lost on one and not on the other, which does
    # not change between two kills: nothing before the first one, and after
    # the last one as at the end. The last file is of the end of the epoch.
    apart = report["updates"][0] - report["updates"][1]
    before, _, *after = differences(files, placement)
    assert before == 0
    assert after == [apart, apart]
    # Beside the last one there may be what training has ended with.
    names = {path.name for path in files.directory.iterdir()} - {
        "end-00000004.zip"
    }
    assert names == {files.path(number).name for number in range(1, 5)}

    strategy, model = local_model()
    parts = model.layers[-1].parts
    model.load_weights(weights)
    first, second = updates_in([part.numpy() for part in parts], placement)
    assert first - second == apart
    _, newest = files.newest()
    strategy.state.restore(newest)
    first, second = updates_in([part.numpy() for part in parts], placement)
    assert first - second == apart
    assert max(first, second) == newest.header["updates"]


def test_killed_while_it_applies_what_it_has_decided_over(cluster):
    scene = Scene(cluster(num_ps=2, num_workers=2), synchronization="sync")
    scene.kill_in_the_midst_of_an_update(0)
    scene.made.tell("stop")
    scene.made.finish()
    for index, worker in enumerate(scene.workers):
        report = worker.report()
        counts, updates = report["counts"], report["updates"]
        found = updates_in(report["parts"], report["placement"])
        assert found == tuple(updates)
        assert counts["dropped"] == 0
        for number, applied, lost in zip(
            updates, counts["applied"], counts["lost"], strict=True
        ):
            assert counts["pushed"] == applied + lost
            # That gradient which was under way may be part of an update of
            # the server that was not killed.
            assert 0 <= lost <= 1
            # The other one takes a step more where the chief has stopped.
            most = max(one["accepted"] for one in report["all_counts"].values())
            assert applied <= number <= most + lost
        mine = report["all_counts"][f"/job:worker/task:{index}"]
        assert mine["pushed"] == mine["accepted"] == counts["applied"][0]


def test_killed_when_the_worker_has_a_part_of_the_answer(cluster):
    # Each weight is sent by itself, as soon as its own update is done.
    scene = Scene(
        cluster(num_ps=1, num_workers=1), nonfinite="ignore", elements=20000
    )
    scene.kill_in_the_midst_of_an_update(0)
    scene.made.tell("stop")
    scene.made.finish()
    check_exact([worker.report() for worker in scene.workers])
