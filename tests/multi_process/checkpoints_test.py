"""What is saved while a real cluster trains is of one moment, and resumable."""

import keras
import numpy as np
import pytest

from tests.multi_process import tasks
from tests.multi_process.real_cluster import ClusterUnderTest
from tfdist import saved_state

pytestmark = pytest.mark.nightly

_SAVES = 10
_MOMENTUM = 0.5


def _read(path):
    with path.open("rb") as file:
        return saved_state.read(file)


def _assert_is_of_one_moment(weights, calls, iterations):
    """All weights have made the same steps, and so many are counted."""
    values = {float(x) for weight in weights for x in np.ravel(weight)}
    counts = {float(x) for call in calls for x in np.ravel(call)}
    assert len(values) == 1, values
    assert counts == {float(iterations)}
    return values.pop()


def _weights_of(path):
    model = keras.Sequential([keras.Input([1]), tasks.SumOfWeights()])
    model.compile(keras.optimizers.SGD(0.125), loss=tasks.first_output)
    model.load_weights(path)
    return model


def test_saved_is_of_one_moment_and_resumed_by_another_cluster(
    zygote, tmp_path
):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ClusterUnderTest(zygote, first, num_ps=2, num_workers=3) as cluster:
        cluster.start_servers()
        cluster.start_workers(
            "checkpoint_tasks:save_while_others_train", saves=_SAVES
        )
        cluster.finish()

    made = 0
    for path in sorted(first.glob("state/checkpoint-*.zip")):
        state = _read(path)
        made += 1
        by_kind = {}
        for number, (name, role, *_) in enumerate(state.header["variables"]):
            kind = "calls" if "calls" in name else role
            by_kind.setdefault(kind, []).append(
                state.arrays[f"variable/{number}"]
            )
        (iterations,) = by_kind["iterations"]
        _assert_is_of_one_moment(
            by_kind["parameter"], by_kind["calls"], iterations
        )
        assert state.header["updates"] == iterations
        # The momenta of all variables have had the same gradients, and their
        # sum is that of the workers'.
        for name in ("momenta", "sum", "rate"):
            slots = [v for k, v in state.arrays.items() if k.endswith(name)]
            assert len(slots) == len(tasks.SHAPES)
        for key, momenta in state.arrays.items():
            if key.endswith("/momenta"):
                total = state.arrays[key.replace("/momenta", "/sum")]
                np.testing.assert_allclose(momenta.sum(0), total, rtol=1e-5)
    assert made == _SAVES + 1
    saved = sorted(first.glob("saved-*.weights.h5"))
    assert len(saved) == _SAVES
    for path in [*saved, first / "backup-0" / "latest.weights.h5"]:
        model = _weights_of(path)
        _assert_is_of_one_moment(
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.iterations,
        )

    newest = max(first.glob("state/checkpoint-*.zip"))
    expected = _read(newest)
    # As of a run that was killed: it has not saved its end.
    (end,) = first.glob("state/end-*.zip")
    end.unlink()
    with ClusterUnderTest(zygote, second, num_ps=1, num_workers=2) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            "checkpoint_tasks:resume",
            directory=str(first / "state"),
            epochs=1,
        )
        cluster.finish()
    reports = [worker.report() for worker in workers]
    number = int(expected.header["updates"])
    (weight,) = {
        float(x)
        for n, (_, role, *_) in enumerate(expected.header["variables"])
        if role == "parameter"
        for x in expected.arrays[f"variable/{n}"].ravel()
    }
    for report in reports:
        assert report["epoch"] == 1
        assert report["iterations"] == number
        assert report["updates"] == [number]
        found = _assert_is_of_one_moment(
            report["weights"][: len(tasks.SHAPES)],
            report["weights"][len(tasks.SHAPES) :],
            number,
        )
        assert found == weight
    # The chief's momentum has gone down by one gradient of zero.
    slots = reports[0]["slots"]
    assert slots.keys() == {
        k for k in expected.arrays if k.startswith("correction/")
    }
    for key in (k for k in slots if k.endswith("/momenta")):
        before, after = expected.arrays[key], np.array(slots[key])
        assert np.all(before[0] < 0) or np.all(before[0] > 0)
        np.testing.assert_allclose(after[0], _MOMENTUM * before[0], rtol=1e-6)
        np.testing.assert_allclose(after[1], before[1], rtol=1e-6)
        # Nothing is left of the third worker.
        assert len(before) == 3
        assert len(after) == 2
        total = np.array(slots[key.replace("/momenta", "/sum")])
        np.testing.assert_allclose(total, after.sum(0), rtol=1e-5)


@pytest.mark.parametrize("callback", ["ClusterCheckpoint", "BackupAndRestore"])
def test_who_evaluates_first_resumes_with_what_was_saved(
    zygote, tmp_path, callback
):
    losses = []
    for epochs in (1, 2):
        with ClusterUnderTest(zygote, tmp_path, num_workers=2) as cluster:
            cluster.start_servers()
            workers = cluster.start_workers(
                "checkpoint_tasks:go_on_after_evaluation",
                callback=callback,
                epochs=epochs,
            )
            cluster.finish()
        losses.append([worker.report()["loss"] for worker in workers])
    # The loss is the sum of all weights. Adam takes 0.125 from each in a step,
    # and what was saved is of four steps or more.
    begun, resumed = losses
    assert 0.0 in begun
    number = sum(int(np.prod(shape)) for shape in tasks.SHAPES)
    assert max(resumed) < 0.99 * 4 * -0.125 * number
