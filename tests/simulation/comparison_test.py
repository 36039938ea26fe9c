"""Comparisons judge as they say, and say what the runs were."""

import csv
import json
import math

import keras
import numpy as np
import pytest

from tests.simulation.histories import made
from tfdist import simulation
from tfdist.correction import DANA
from tfdist.simulation import comparison as comparison_lib
from tfdist.simulation import curves
from tfdist.simulation.results import ONE_MACHINE


def small_model(learning_rate=None, momentum=0.0):
    """What `compare` takes as `model_fn_of`."""

    def model_fn():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2, activation="softmax")]
        )
        model.compile(
            keras.optimizers.SGD(learning_rate or 0.1, momentum=momentum),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    return model_fn


def small_data(number):
    x = np.random.default_rng(0).standard_normal((number, 3)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


@pytest.fixture(scope="module")
def compared():
    return simulation.compare(
        small_model,
        small_data(64),
        ["async"],
        [2],
        learning_rates=[0.5],
        extra_rates=0,
        seeds=[1, 2],
        batch_size=8,
        epochs=2,
        validation_data=small_data(40),
        compute=simulation.Constant(0.1),
        network=simulation.Network(latency_seconds=0.05),
    )


@pytest.mark.nightly
def test_every_figure_is_that_of_the_histories(compared):
    alone, other = compared.rows()
    assert [alone["method"], other["method"]] == [ONE_MACHINE, "async"]
    histories = compared.histories("async", 2)
    assert [h.seed for h in histories] == [1, 2]
    finals = [h.final("accuracy") for h in histories]
    assert other["final_mean"] == pytest.approx(np.mean(finals))
    assert other["final_std"] == pytest.approx(np.std(finals, ddof=1))
    staleness = np.concatenate([h.staleness for h in histories])
    assert other["staleness_mean"] == pytest.approx(staleness.mean())
    assert other["utilization"] == pytest.approx(
        np.mean([h.utilization for h in histories])
    )
    assert other["gigabytes"] == pytest.approx(
        np.mean([h.total_bytes for h in histories]) / 1e9
    )
    assert other["learning_rate"] == 0.5
    assert alone["staleness_mean"] == 0
    assert all(h.model is None for h in histories)


@pytest.mark.nightly
def test_one_machine_has_no_network(compared):
    (history, _) = compared.histories(ONE_MACHINE, 1)
    assert history.num_workers == 1
    assert history.seconds == pytest.approx(2 * 8 * 0.1)
    alone, other = compared.rows()
    # A step takes 0.1 s alone, and twice the latency more on the cluster.
    assert alone["speed_up"] == 1
    assert other["speed_up"] == pytest.approx(2 * 0.1 / 0.2)
    assert alone["gigabytes"] == 0


@pytest.mark.nightly
def test_what_is_compared_is_what_simulate_does(compared):
    alone = simulation.simulate(
        small_model(0.5),
        small_data(64),
        "async",
        num_workers=2,
        batch_size=8,
        epochs=2,
        validation_data=small_data(40),
        compute=simulation.Constant(0.1),
        network=simulation.Network(latency_seconds=0.05),
        seed=2,
    )
    same = compared.histories("async", 2)[1]
    assert same.evaluations == alone.evaluations
    np.testing.assert_array_equal(same.jobs, alone.jobs)


def test_files_hold_the_rows(compared, tmp_path):
    compared.write_csv(tmp_path / "c.csv")
    compared.write_json(tmp_path / "c.json")
    with open(tmp_path / "c.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = compared.rows()
    assert [line["method"] for line in lines] == [r["method"] for r in rows]
    assert float(lines[1]["final_mean"]) == rows[1]["final_mean"]
    loaded = json.loads((tmp_path / "c.json").read_text())
    assert loaded["rows"] == rows
    assert len(loaded["runs"]) == 2 * 2


def test_the_table_shows_the_figures(compared):
    text = compared.table()
    row = compared.rows()[1]
    lines = [line for line in text.splitlines() if line.startswith("async")]
    learned, reached, taken = (line.split() for line in lines)
    assert "staleness  staleness p95  dropped" in text
    assert reached[2] == f"{row['epochs_to_target']:.2f}"
    assert learned[1:4] == ["2", "0.5", f"{row['final_mean']:.3f}"]
    assert f"{row['staleness_mean']:.2f}" in taken
    assert f"target {compared.target:.3f}" in text
    assert max(map(len, text.splitlines())) < 140


def comparison_of(runs, **arguments):
    return simulation.Comparison(runs, **arguments)


def test_areas_and_times():
    slow = made("slow", 2, values=(0.0, 0.4, 0.8), seconds=4.0)
    fast = made("fast", 2, values=(0.0, 0.5, 0.5), seconds=2.0, dropped=2)
    compared = comparison_of(
        {("slow", 2): {0.1: [slow]}, ("fast", 2): {0.1: [fast]}}, target=0.4
    )
    first, second = compared.rows()
    assert first["mean_over_epochs"] == pytest.approx(0.4)
    assert second["mean_over_epochs"] == pytest.approx(0.375)
    # The fastest ends after 2 s; there, half of the slow one is done.
    assert compared.at_seconds == 2.0
    assert first["mean_at_seconds"] == pytest.approx(0.4)
    assert second["mean_at_seconds"] == pytest.approx(0.5)
    assert first["seconds_to_target"] == 2.0
    assert second["seconds_to_target"] == 1.0
    assert (first["epochs_to_target"], first["updates_to_target"]) == (0.5, 2)
    assert first["dropped"] == 0
    assert second["dropped"] == pytest.approx(2 / 8)
    assert first["examples_per_second"] == pytest.approx(8 * 10 / 4)
    assert first["utilization"] == pytest.approx(1 / 4)
    assert first["speed_up"] is None and first["final_std"] == 0


def test_the_target_is_near_the_best_of_the_clusters():
    runs = {
        (ONE_MACHINE, 1): {0.1: [made(values=(0.0, 1.0))]},
        ("a", 2): {0.1: [made("a", values=(0.0, 0.8))]},
        ("b", 2): {0.1: [made("b", values=(0.0, 0.6))]},
    }
    compared = comparison_of(runs)
    assert compared.target == pytest.approx(0.95 * 0.8)
    rows = compared.rows()
    assert rows[1]["speed_up_to_target"] == 1.0
    assert rows[2]["seconds_to_target"] is None
    assert rows[2]["speed_up_to_target"] is None


def test_less_of_a_loss_is_better():
    runs = {
        ("a", 2): {
            0.1: [made("a", values=(2.0, 1.0), metric="loss")],
            0.2: [made("a", values=(2.0, 0.5), metric="loss")],
            0.4: [made("a", values=(2.0, math.nan), metric="loss")],
        }
    }
    compared = comparison_of(runs)
    assert compared.at_the_edge() == []
    assert "*" not in compared.table()
    assert compared.metric == "loss" and compared.smaller_is_better
    assert compared.picked["a", 2] == 0.2
    assert compared.target == pytest.approx(0.5 / 0.95)
    (row,) = compared.rows()
    assert row["best_mean"] == 0.5
    assert row["seconds_to_target"] == 2.0


@pytest.mark.parametrize(
    ("names", "is_smaller"),
    [
        ("MAE MSE bce digit_mape hinge SquaredHinge poisson logcosh", True),
        ("LogCoshError KLDivergence false_positives Loss", True),
        ("AUC r2_score IoU acc cosine_similarity", False),
    ],
)
def test_losses_and_errors_have_many_names(names, is_smaller):
    for name in names.split():
        assert curves.smaller_is_better(name) == is_smaller, name


@pytest.mark.parametrize(
    ("metric", "best", "target"),
    [
        ("loss", -0.9, -0.9 + 0.9 * (1 / 0.95 - 1)),
        ("r2_score", -0.2, -0.2 - 0.05 * 0.2),
    ],
)
def test_a_target_below_zero_is_reached(metric, best, target):
    first = 0.0 if metric == "loss" else -1.0
    history = made("a", values=(first, best), metric=metric)
    compared = comparison_of({("a", 2): {0.1: [history]}})
    assert compared.target == pytest.approx(target)
    assert compared.rows()[0]["seconds_to_target"] == 2.0


@pytest.mark.parametrize("rates", [[0.1, 0.5, 1.0], [1.0, 0.5, 0.1]])
def test_where_all_rates_diverge_the_least_is_the_best(rates):
    runs = {rate: [made(values=(0.1, 0.9), diverged=True)] for rate in rates}
    compared = comparison_of({("a", 2): runs})
    assert compared.picked["a", 2] == 0.1
    assert compared.at_the_edge() == [("a", 2)]


@pytest.mark.parametrize("final", [0.1, 0.9])
def test_the_models_own_rate_is_at_no_edge(final):
    rates = {None: 0.5, 0.05: final}
    runs = {r: [made(values=(0.1, v))] for r, v in rates.items()}
    compared = comparison_of({("a", 2): runs})
    assert compared.at_the_edge() == []
    assert "*" not in compared.table()


def test_rates_that_diverge_are_the_worst():
    good = [made(values=(0.1, 0.2), seed=s) for s in (0, 1)]
    half = [
        made(values=(0.1, 0.9)),
        made(values=(0.1, 0.1), seed=1, diverged=True),
    ]
    none = [made(values=(0.1, 0.99), seed=s, diverged=True) for s in (0, 1)]
    compared = comparison_of({("a", 2): {1.0: none, 0.5: half, 0.1: good}})
    assert compared.picked["a", 2] == 0.1
    compared = comparison_of({("a", 2): {1.0: none, 0.5: half}})
    assert compared.picked["a", 2] == 0.5
    assert compared.rows()[0]["diverged"] == 1


def test_the_best_rate_at_the_edge_of_the_grid_is_marked(tmp_path):
    def runs(best):
        rates = {0.1: 0.2, 0.2: 0.3, 0.4: 0.2}
        rates[best] = 0.9
        return {r: [made(values=(0.1, v))] for r, v in rates.items()}

    grid = {("a", 2): runs(0.1), ("b", 2): runs(0.2), ("c", 2): runs(0.4)}
    # One rate is no choice.
    grid["d", 2] = {0.4: [made(values=(0.1, 0.5))]}
    compared = comparison_of(grid)
    assert compared.at_the_edge() == [("a", 2), ("c", 2)]
    text = compared.table()
    assert "0.1*" in text and "0.4*" in text and "0.2*" not in text
    assert "* 2 of 4 did best with the least or the greatest" in text
    compared.write_json(tmp_path / "c.json")
    written = json.loads((tmp_path / "c.json").read_text())["runs"]
    assert len(written) == 3 * 3 + 1
    assert sum(run["picked"] for run in written) == 4


def trained_rates(monkeypatch, best, **arguments):
    """Compares methods whose accuracy falls with the distance to `best`.

    Returns:
      A `Comparison` of one seed, whose learning rates are 0.1, 0.2 and 0.4.
    """
    tried = []

    def model_fn_of(rate, momentum):
        tried.append(rate)
        return small_model(rate)

    def simulated(model_fn, data, method, *, num_workers, seed, **others):
        distance = abs(math.log2(tried[-1] / best[method.name]))
        final = 1.0 - 0.05 * distance
        return made(method.name, num_workers, values=(0.1, final), seed=seed)

    monkeypatch.setattr(comparison_lib, "simulate", simulated)
    return simulation.compare(
        model_fn_of,
        small_data(64),
        list(best),
        [2],
        learning_rates=[0.1, 0.2, 0.4],
        single=False,
        batch_size=8,
        **arguments,
    )


@pytest.mark.nightly
def test_the_grid_is_widened_until_the_best_rate_is_inside(monkeypatch):
    best = {"async": 0.2, "sync": 0.8, "softsync": 0.025}
    compared = trained_rates(monkeypatch, best)
    assert {key[0]: rate for key, rate in compared.picked.items()} == best
    assert compared.at_the_edge() == []
    # One beyond the best shows that it is the best.
    assert compared.added_rates == {
        ("sync", 2): [0.8, 1.6],
        ("softsync", 2): [0.05, 0.025, 0.0125],
    }
    text = " ".join(compared.table().split())
    assert (
        "2 of 3 did best at the edge of the given learning rates, so up to 3 "
        "more were tried for each: 0.0125, 0.025, 0.05, 0.8, 1.6." in text
    )
    assert "*" not in text


def test_the_grid_is_widened_no_more_than_is_allowed(monkeypatch):
    compared = trained_rates(monkeypatch, {"sync": 100.0}, extra_rates=2)
    assert compared.added_rates == {("sync", 2): [0.8, 1.6]}
    assert compared.at_the_edge() == [("sync", 2)]
    assert "1.6*" in compared.table()
    compared = trained_rates(monkeypatch, {"sync": 100.0}, extra_rates=0)
    assert compared.added_rates == {}
    assert compared.picked == {("sync", 2): 0.4}


def test_numbers_that_are_none_can_be_written(tmp_path):
    runs = {
        ("a", 2): {
            None: [made("a", values=(2.0, math.nan), metric="loss", steps=1)]
        }
    }
    compared = comparison_of(runs)
    compared.write_json(tmp_path / "c.json")
    loaded = json.loads((tmp_path / "c.json").read_text())
    assert loaded["rows"][0]["final_mean"] is None
    assert loaded["target"] is None
    assert "nan" not in compared.table().lower()


@pytest.mark.parametrize(
    ("names", "metric"),
    [
        (["loss", "f1", "accuracy"], "accuracy"),
        (["loss", "mae"], "mae"),
        (["loss"], "loss"),
        ([], "train_loss"),
    ],
)
def test_the_metric_that_is_judged_by(names, metric):
    history = made(metric="updates", values=(0, 1))
    for row in history.evaluations:
        row.update(dict.fromkeys(names, 0.5))
    assert curves.default_metric([history]) == metric
    assert curves.smaller_is_better(metric) == (metric != "accuracy")


def test_dana_has_the_momentum_and_the_optimizer_none():
    method, rest = comparison_lib.with_momentum("dana", 0.3)
    assert method.name == "dana"
    assert (method.correction.momentum, rest) == (0.3, 0.0)
    method, rest = comparison_lib.with_momentum("dana:momentum=0.5", 0.3)
    assert (method.correction.momentum, rest) == (0.5, 0.0)
    method, rest = comparison_lib.with_momentum(DANA(momentum=0.7), 0.3)
    assert (method.correction.momentum, rest) == (0.7, 0.0)
    method, rest = comparison_lib.with_momentum("dana", None)
    assert (method.correction.momentum, rest) == (0.9, 0.0)
    assert comparison_lib.with_momentum("async", 0.3)[1] == 0.3
    assert comparison_lib.with_momentum("async", None)[1] == 0.0


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match="`metric` must be one of accuracy"):
        comparison_of({("a", 2): {0.1: [made()]}}, metric="f1")
