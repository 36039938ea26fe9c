"""Coordinators that go on when shards have lost what they held."""

import itertools
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster.chief import LOST
from tests.sandblaster.chief import MOST_PORTIONS
from tests.sandblaster.chief import SHARDS
from tests.sandblaster.chief import START
from tests.sandblaster.chief import Chief
from tests.sandblaster.chief import Clock
from tests.sandblaster.chief import disturb
from tests.sandblaster.chief import go_over
from tfdist.cluster import snapshot_slots
from tfdist.sandblaster import commands
from tfdist.sandblaster import iteration_snapshots
from tfdist.sandblaster import minimizer
from tfdist.sandblaster import samples
from tfdist.sandblaster import work_queue

_names = itertools.count()


@pytest.fixture
def name():
    return f"coordinator_test/{next(_names)}"


@pytest.fixture
def offered(tmp_path):
    """A directory that this process offers, as a server does."""
    device = tf.config.list_logical_devices("CPU")[0].name
    made = snapshot_slots.SnapshotSlots(
        tmp_path, device, task=0, num_servers=1, every=1.0
    )
    made.restore()
    yield tmp_path / "ps-0-of-1"
    made.finish()
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.string, shape=None, shared_name="tfdist/snapshot_slots"
    )
    tf.raw_ops.DestroyResourceOp(resource=handle)


@pytest.fixture
def directory(offered, monkeypatch):
    """The same, for a snapshot of each iteration."""
    monkeypatch.setattr(iteration_snapshots, "_MOST_OF_TIME", 0)
    return offered


@pytest.fixture(scope="module")
def undisturbed():
    """Values and the last point of twelve iterations."""
    chief = Chief("coordinator_test/undisturbed")
    assert not chief.begin()
    return chief.iterate(12)


@pytest.mark.nightly
def test_a_call_of_fit_looks_at_its_loss_again(name):
    """It may be another one, as after `compile`."""
    chief = Chief(name)
    chief.begin()
    _, x = chief.iterate(3)
    chief.portions.factor = 2.0
    chief.begin(fit=1)
    fresh = Chief(f"{name}/fresh")
    fresh.portions.factor = 2.0
    fresh.portions.assign(x)
    fresh.begin()
    assert chief.iterate(2) == fresh.iterate(2)


@pytest.mark.nightly
def test_late_deposits_and_their_tickets_do_not_count(
    name, directory, undisturbed
):
    del directory
    chief = Chief(name, Clock())
    chief.begin()
    board = chief.records[0]
    old = []

    def lose():
        queue = work_queue.restored(board.read()["queue"])
        old.append(queue.take(7, 0.0).ticket)
        board.change(
            lambda record, now: record.update(
                queue=work_queue.restored(record["queue"]).state()
            )
        )
        chief.lose(1)

    disturb(chief, 8, lose)
    with pytest.raises(tf.errors.UnavailableError):
        chief.iterate(12)
    chief.go_on()
    huge = tf.constant(np.full(len(START), 1e9))
    late = []

    def before(portion):
        del portion
        if not late:
            late.append(old[0])
            chief.deposits.keep(old[0], huge, [1e9, 1.0])
            queue = work_queue.restored(board.read()["queue"])
            assert not queue.is_open(old[0])
            assert not queue.complete(old[0], 1.0)

    chief.portions.before = before
    values, x = chief.iterate(12)
    assert late
    assert (values[-1], x) == (undisturbed[0][-1], undisturbed[1])


@pytest.mark.nightly
@pytest.mark.parametrize(("lost", "is_written"), [([1], False), ([], True)])
def test_a_pair_that_is_half_written_is_written_again(
    name, directory, undisturbed, monkeypatch, lost, is_written
):
    del directory
    chief = Chief(name, Clock())
    chief.begin()
    run, pairs = chief.shards.run, []

    def failing(batch):
        if any(isinstance(one, commands.SetRow) for one in batch):
            pairs.append(batch)
            if len(pairs) == 7:
                if is_written:
                    run(batch)
                for shard in lost:
                    chief.lose(shard)
                raise LOST
        return run(batch)

    monkeypatch.setattr(chief.shards, "run", failing)
    last = go_over(chief, 12)
    assert last["value"] == undisturbed[0][-1]
    assert chief.portions.x.tolist() == undisturbed[1]


@pytest.mark.nightly
def test_without_snapshots_the_parameters_are_those_of_the_last_iteration(name):
    chief = Chief(name)
    chief.begin()
    values, x = chief.iterate(6)
    chief.lose(1)
    chief.go_on()
    result = chief.coordinator.iterate(5)
    assert result["value"] == values[-1]
    point = chief.shards.fetch(result["point"]).numpy()
    assert point.tolist() == x
    assert chief.coordinator.iterate(6)["value"] < values[-1]


@pytest.mark.nightly
def test_servers_that_were_lost_between_two_fits_are_told(name, caplog):
    chief = Chief(name)
    chief.begin()
    chief.iterate(2)
    assert "have lost" not in caplog.text
    for shard in range(SHARDS):
        chief.lose(shard)
    assert not chief.begin()
    assert "Parameter servers have lost what they held" in caplog.text


@pytest.mark.nightly
def test_another_process_goes_on_and_the_first_must_end(name, undisturbed):
    first = Chief(name)
    first.begin(counted=3)
    expected = first.iterate(5)
    other = Chief(name)
    assert other.begin(counted=1)
    # Its optimizer counts on from where that of the first one began.
    assert other.coordinator.iterate(4)["iterations"] == 3 + 5
    before = other.shards.fetch(minimizer.POINTS[0]).numpy()
    # What the first one has sent is not carried out.
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        first.shards.run([commands.Scale(minimizer.POINTS[0], 2.0)])
    with pytest.raises(RuntimeError, match="must end"):
        first.fence.explain(caught.value)
    np.testing.assert_array_equal(
        other.shards.fetch(minimizer.POINTS[0]), before
    )
    with pytest.raises(RuntimeError, match="must end"):
        first.go_on()
    with pytest.raises(RuntimeError, match="must end"):
        first.coordinator.iterate(5)
    with pytest.raises(RuntimeError, match="must end"):
        first.begin()
    values, x = other.iterate(12)
    assert values[4] == expected[0][-1]
    assert (values[-1], x) == (undisturbed[0][-1], undisturbed[1])


# Three portions of eight, as many as `disturb` counts in an evaluation; one is
# shared with the next sample.
SAMPLED = samples.Samples(MOST_PORTIONS, 0.375, 0.3)


@pytest.fixture(scope="module")
def sampled():
    """As `undisturbed`, of samples."""
    chief = Chief("coordinator_test/sampled", samples=SAMPLED)
    assert not chief.begin()
    values, x = chief.iterate(8)
    # Samples differ, and the point moves.
    assert len(set(values)) == 8
    assert np.all(np.isfinite(x))
    return values, x


@pytest.mark.nightly
def test_another_process_goes_on_with_the_same_samples(
    name, directory, sampled
):
    del directory
    first = Chief(name, Clock(), SAMPLED)
    first.begin()
    disturb(first, 7, lambda: None)
    with pytest.raises(tf.errors.UnavailableError):
        first.iterate(8)
    for shard in (0, 1):
        first.lose(shard)
    other = Chief(name, Clock(), SAMPLED)
    assert other.begin()
    values, x = other.iterate(8)
    assert (values[-1], x) == (sampled[0][-1], sampled[1])
    # The first one would put back what it has lost.
    with pytest.raises(RuntimeError, match="must end"):
        first.go_on()


@pytest.mark.nightly
def test_a_pair_of_samples_that_is_half_written_is_written_again(
    name, directory, sampled, monkeypatch
):
    del directory
    chief = Chief(name, Clock(), SAMPLED)
    chief.begin()
    run, pairs = chief.shards.run, []

    def failing(batch):
        answer = run(batch)
        if any(isinstance(one, commands.SetRow) for one in batch):
            pairs.append(batch)
            if len(pairs) == 5:
                raise LOST
        return answer

    monkeypatch.setattr(chief.shards, "run", failing)
    last = go_over(chief, 8)
    assert (last["value"], chief.portions.x.tolist()) == (
        sampled[0][-1],
        sampled[1],
    )


@pytest.mark.nightly
def test_a_snapshot_that_is_damaged_is_not_used(name, directory, undisturbed):
    chief = Chief(name, Clock())
    chief.begin()
    for done, damage in ((4, "cut"), (7, "removed"), (10, "other")):
        chief.iterate(done)
        slot = chief.snapshots.slot
        (newest,) = directory.glob(f"*-{slot}-shard-1.data*")
        if damage == "cut":
            newest.write_bytes(newest.read_bytes()[:-40])
        elif damage == "removed":
            newest.unlink()
        else:
            content = bytearray(newest.read_bytes())
            content[3] ^= 1
            newest.write_bytes(content)
        chief.lose(1)
        chief.go_on()
        assert chief.snapshots.slot == 1 - slot, damage
        assert chief.records[1].read()["done"] < done
    values, x = chief.iterate(12)
    assert (values[-1], x) == (undisturbed[0][-1], undisturbed[1])
    assert len(chief.snapshots.seconds) > 3
    assert len(list(directory.glob("*.index"))) == 2 * SHARDS


@pytest.mark.nightly
def test_a_disk_that_fails_ends_nothing(name, directory, undisturbed):
    chief = Chief(name, Clock())
    chief.begin()
    chief.iterate(6)
    written = len(chief.snapshots.seconds)
    aside = pathlib.Path(f"{directory}-aside")
    directory.rename(aside)
    directory.write_text("not a directory")
    chief.iterate(9)
    assert len(chief.snapshots.seconds) == written
    directory.unlink()
    aside.rename(directory)
    values, x = chief.iterate(12)
    assert len(chief.snapshots.seconds) > written
    assert (values[-1], x) == (undisturbed[0][-1], undisturbed[1])


def test_snapshots_take_a_twentieth_of_the_time_at_most(offered):
    del offered
    # Of `look`, `is_due` and the begin and the end of `write`.
    times = iter(
        [0.0, 1.0, 1.0, 1.03125, 2.0, 2.03125, 12.03125, 212.0, 212.03125]
    )
    device = tf.config.list_logical_devices("CPU")[0].name
    made = iteration_snapshots.IterationSnapshots(
        "twentieth", [device], device, lambda: next(times)
    )
    made.look()
    assert made.is_due()
    stored = types.SimpleNamespace(write=lambda *_: None)
    # It takes a 32nd of the interval of a second.
    assert made.write(stored, 0, {})
    assert not made.is_due()
    # It takes 10 s: a pause of 200 s.
    assert made.write(stored, 0, {})
    assert not made.is_due()
    assert made.is_due()
