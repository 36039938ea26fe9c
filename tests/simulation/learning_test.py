"""What is said of how soon a target is reached, of runs made by hand."""

from tests.simulation.histories import made
from tests.simulation.predictions import row
from tfdist import simulation
from tfdist.correction import DANA
from tfdist.simulation import comparison
from tfdist.simulation import learning
from tfdist.simulation.measurement import Variable
from tfdist.simulation.results import ONE_MACHINE


def compared(*histories, alone=(0.1, 0.5, 0.9), target=0.9):
    runs = {(ONE_MACHINE, 1): {0.1: [made(values=alone, seconds=8.0)]}}
    for history in histories:
        runs[history.method, history.num_workers] = {0.1: [history]}
    return simulation.Comparison(runs, target=target)


def advice(*predictions, recommended):
    return simulation.Advice(
        measurement=None,
        predictions=list(predictions),
        recommended=recommended,
        remedies=[],
        verdict=["By speed alone, use it.", learning.UNKNOWN],
        cluster=None,
        methods={},
        min_speed_up=1.5,
    )


def test_dana_of_a_text_is_trained_with_the_momentum_that_is_given(monkeypatch):
    seen = []

    def compare(model_fn_of, dataset, strategies, *args, momentum, **kwargs):
        seen.extend(
            comparison.with_momentum(strategy, momentum)[0].correction.momentum
            for strategy in strategies
        )

    monkeypatch.setattr(learning, "compare", compare)
    measurement = simulation.Measurement(
        100, [1.0], 0.0, 1.0, [Variable((250_000,))]
    )
    advised = simulation.advise(
        measurement,
        num_workers=2,
        strategies=["dana", simulation.Method(correction=DANA(momentum=0.7))],
        steps=10,
    )
    learning.learn(advised, None, None, epochs=1, momentum=0.3)
    assert sorted(seen) == [0.3, 0.7]


def test_the_soonest_is_recommended_and_not_the_fastest():
    text = learning.sentence(
        compared(
            made("fast", 8, values=(0.1, 0.5, 0.9), seconds=2.0),
            made("good", 8, values=(0.1, 0.9, 0.9), seconds=3.0),
        ),
        1.5,
    )
    # Half of 3 seconds, of one epoch and of four updates.
    assert text.startswith(
        "Use good with 8 workers: it reaches accuracy 0.900 after 0.50 epochs "
        "(2.00 updates, 1.50 s), at "
    )
    assert "One machine takes 1.00 epochs (4.00 updates, 8.00 s), 5.3" in text
    assert "one seed" in text


def test_a_cluster_that_is_hardly_sooner_is_not_recommended():
    text = learning.sentence(compared(made("slow", 8, seconds=7.0)), 1.5)
    assert text.startswith("Stay on one machine. The soonest is slow with 8")


def test_what_nobody_reached_is_not_known():
    text = learning.sentence(compared(made("a", 8), target=0.95), 1.5)
    assert "No method reached accuracy 0.950" in text and "not known" in text


def test_one_machine_may_not_reach_it():
    text = learning.sentence(compared(made("a", 8), alone=(0.1, 0.2)), 1.5)
    assert "Use a with 8 workers" in text
    assert "One machine did not reach it." in text


def test_who_has_the_target_before_any_training_is_no_sooner():
    values = (0.96, 0.97)
    text = learning.sentence(
        compared(made("a", 8, values=values), alone=values), 1.5
    )
    assert text.startswith("The initial model reaches accuracy 0.900")


def test_the_recommended_and_the_fastest_of_its_size_are_trained():
    rows = [
        row("sync", 4.0),
        row("softsync", 5.0),
        row("async", 6.0),
        row("bounded_staleness", 4.5),
        row("async", 9.0, num_workers=16),
    ]
    found = learning.candidates(advice(*rows, recommended=rows[0]))
    assert found == [rows[0], rows[2], rows[1]]
    assert learning.candidates(advice(*rows, recommended=None)) == []


def test_what_was_learned_stands_in_the_place_of_not_knowing():
    before = advice(row("sync", 4.0), recommended=None)
    after = before.with_learning(compared(made("a", 8)))
    assert after.verdict[0] == "By speed alone, use it."
    assert after.verdict[1].startswith("Use a with 8 workers")
