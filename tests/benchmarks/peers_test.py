"""The scoreboard of tfdist and its peers."""

import pathlib

from harness import children
from harness import keras_peers
from harness import peer_figures
from harness import peer_models
from harness import peer_systems
from harness import torch_peers
import pytest

PROGRAM = pathlib.Path(__file__).parents[2] / "benchmarks" / "peers.py"
SMALL = peer_models.Shape(3, (4, 5), 2)


def row(*rates):
    return peer_figures.Row([peer_figures.Turn(r, 0.5 / r) for r in rates])


def test_steps_count_while_all_workers_are_active():
    # Both are active from 1 to 4: 3 steps of the first, 6 of the second.
    first = [1.0, 2.0, 3.0, 4.0]
    second = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert peer_figures.rate([first, second]) == 9 / 3
    assert peer_figures.pace(first) == 1.0
    assert peer_figures.pace(second) == 2.0


def test_workers_one_after_the_other_have_no_rate():
    with pytest.raises(ValueError, match="all workers were active"):
        peer_figures.rate([[0.0, 1.0], [1.0, 2.0]])


def test_cpu_time_is_shared_by_all_steps_of_the_turn():
    turn = peer_figures.Turn.of([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], 3.0)
    assert turn == peer_figures.Turn(2.0, 3.0 / 6)


def test_a_row_shows_medians_over_the_rounds():
    shown = row(10.0, 40.0, 20.0)
    assert shown.steps_per_second == 20.0
    assert shown.cpu_ms_per_step == pytest.approx(500 / 20)


def test_ratios_are_those_within_a_round():
    # 2, 1 and 3; the ratio of the medians is 1.
    ratio = peer_figures.ratio(row(2.0, 4.0, 30.0), row(1.0, 4.0, 10.0))
    assert ratio == 2.0


def test_every_aim_names_systems_and_models_that_there_are():
    for pair, aims in peer_figures.AIMS.items():
        assert set(pair) <= set(peer_systems.SYSTEMS)
        assert list(aims) == list(peer_models.MODELS)
    assert len(peer_figures.AIMS) == 5


def test_an_aim_is_reached_missed_or_without_a_figure():
    failed = peer_figures.Row([None], "not installed")
    rows = {
        "tfdist_async": row(18.0),
        "tf_ps": row(10.0),
        "torch_rpc": failed,
        "tfdist_sync": row(9.0),
    }
    outcomes = peer_figures.outcomes("small", rows)
    assert [
        (o["system"], o["peer"], o["aim"], o["ratio"], o["reached"])
        for o in outcomes
    ] == [
        ("tfdist_async", "tf_ps", 1.8, 1.8, True),
        ("tfdist_async", "torch_rpc", 0.5, None, False),
        ("tfdist_sync", "tfdist_async", 0.7, 0.5, False),
    ]


def test_the_model_of_keras_has_the_shape():
    model = keras_peers.build_model(SMALL)
    assert len(model.trainable_variables) == SMALL.num_variables == 6
    assert model.count_params() == SMALL.num_parameters


def test_the_model_of_pytorch_has_the_shape():
    pytest.importorskip("torch")
    parameters = list(torch_peers.build_model(SMALL).parameters())
    assert len(parameters) == SMALL.num_variables
    assert sum(p.numel() for p in parameters) == SMALL.num_parameters


def test_each_worker_has_the_same_amount_of_other_data():
    (x, y), (other, _) = (peer_models.batches(SMALL, k) for k in range(2))
    assert x.shape == other.shape == (16, 32, 3)
    assert y.shape == (16, 32)
    assert set(y.flat) == {0, 1}
    assert (x != other).any()


class Failing(peer_systems.System):
    """A system whose every turn fails, and is noted."""

    turns = []

    def turn(self, shape, seconds):
        self.turns.append(self.title)
        raise children.ChildError("worker 1:\nTraceback\nOSError: no luck\n")


class Working(peer_systems.System):
    def turn(self, shape, seconds):
        return peer_figures.Turn(4.0, 0.25)


def test_who_fails_or_is_not_there_has_a_row_that_says_so():
    systems = {
        "failing": Failing("failing", "", None),
        "absent": Working("absent", "", None, needs="a_package_of_nobody"),
        "working": Working("working", "", None),
    }
    rows = peer_systems.measure(SMALL, systems, 2, 0.1)
    assert rows["failing"].error == "OSError: no luck"
    assert Failing.turns == ["failing"]
    assert rows["absent"].error == peer_systems.NOT_INSTALLED
    assert rows["working"].steps_per_second == 4.0
    for name in ("failing", "absent"):
        assert rows[name].steps_per_second is None
        assert rows[name].cpu_ms_per_step is None
        assert peer_figures.ratio(rows["working"], rows[name]) is None


@pytest.mark.nightly
def test_a_process_that_raises_ends_the_turn():
    with pytest.raises(children.ChildError, match="no attribute 'features'"):
        peer_systems.SYSTEMS["keras"].turn(None, 0.1)
