"""Multi-batch L-BFGS: overlapping samples, against NumPy and limiting cases."""

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.sandblaster import functions
from tests.sandblaster import tasks
import tfdist
from tfdist import simulation
from tfdist.sandblaster import line_search
from tfdist.sandblaster import minimizer
from tfdist.sandblaster import samples
from tfdist.sandblaster import whole_data

BATCH, PORTIONS, MEMORY, STEP = 8, 12, 4, 0.8
SAMPLE, OVERLAP = 0.5, 0.2


@given(
    portions=st.integers(4, 60),
    sample=st.floats(0.05, 0.99),
    overlap=st.floats(0.01, 0.49),
    number=st.integers(0, 500),
)
def test_consecutive_samples_share_what_they_say(
    portions, sample, overlap, number
):
    try:
        made = samples.Samples(portions, sample, overlap)
    except ValueError:
        assume(False)
    one, other = made[number], made[number + 1]
    assert one.after == other.before
    assert len(set(one.portions)) == len(one.portions)
    assert len(one.portions) == round(sample * portions)
    assert len(one.before) == len(one.after) >= 1
    assert len(one.own) >= 1
    # On other tasks, and in another life of this one, it is the same.
    again = samples.Samples(portions, sample, overlap)
    assert again[number] == one


def test_each_portion_is_used_as_often():
    made = samples.Samples(PORTIONS, SAMPLE, OVERLAP)
    # Samples of 6 portions, of which 1 is shared: 12 go round five times.
    used = [p for k in range(12) for p in made[k].before + made[k].own]
    assert sorted(used) == sorted(5 * list(range(PORTIONS)))
    assert made[12] == made[0]


@pytest.mark.parametrize(
    ("portions", "sample", "overlap"),
    [(2, 0.5, 0.3), (8, 0.99, 0.1), (8, 0.25, 0.1), (100, 0.5, 0.499)],
)
def test_too_few_portions_are_refused(portions, sample, overlap):
    with pytest.raises(
        ValueError, match="raise `portions_per_worker`.*lower `batch_size`"
    ):
        samples.Samples(portions, sample, overlap)


class Bolder(line_search.StrongWolfe):
    """A line search of a user's own."""


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"sample": 0.0}, "sample"),
        ({"sample": 1.5}, "sample"),
        ({"overlap": 0.5}, "overlap"),
        ({"overlap": 0.0}, "overlap"),
        ({"sample": 0.5}, "line_search"),
        ({"sample": 0.5, "line_search": "armijo"}, "line_search"),
        ({"line_search": line_search.LineSearch}, "line_search"),
        # A saved model could not hold it.
        ({"line_search": Bolder()}, "line_search"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, name):
    with pytest.raises(ValueError, match=f"Argument `{name}`"):
        tfdist.sandblaster.LBFGS(**settings)


def test_a_step_must_be_positive():
    with pytest.raises(ValueError, match="Argument `step`"):
        line_search.FixedStep(0.0)


def test_settings_survive_saving():
    made = tfdist.sandblaster.LBFGS(
        sample=SAMPLE, overlap=OVERLAP, line_search=line_search.FixedStep(STEP)
    )
    again = tfdist.sandblaster.LBFGS.from_config(made.get_config())
    assert again.get_config() == made.get_config()


def loss_of(flat, rows):
    """As `tasks.loss`, of some examples."""
    x, y = (array[rows] for array in tasks.data())
    weights = flat[: tasks.FEATURES * tasks.CLASSES]
    weights = weights.reshape(tasks.FEATURES, tasks.CLASSES)
    logits = x @ weights + flat[weights.size :]
    logits -= logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    value = -logs[np.arange(len(x)), y].mean()
    slope = (np.exp(logs) - np.eye(tasks.CLASSES)[y]) / len(x)
    gradient = np.concatenate(
        [(x.T @ slope + 2 * tasks.DECAY * weights).ravel(), slope.sum(0)]
    )
    return value + tasks.DECAY * np.sum(weights**2), gradient


def rows_of(portions):
    """Numbers of the examples in some portions."""
    batches = whole_data.portions(
        np.arange(tasks.EXAMPLES).reshape(-1, BATCH), PORTIONS
    )
    return np.concatenate([batches[portion].ravel() for portion in portions])


def multi_batch(iterations):
    """Algorithm 1 of Berahas et al. 2016 in NumPy: points and losses."""
    made = samples.Samples(PORTIONS, SAMPLE, OVERLAP)
    x, pairs, points, values = np.zeros(18), [], [], []
    for k in range(iterations + 1):
        sample = made[k]
        value, gradient = loss_of(x, rows_of(sample.portions))
        if k:
            points.append(x)
            values.append(value)
        direction = functions.two_loop(pairs, gradient)
        first = 1.0 if pairs else 1.0 / np.sqrt(gradient @ gradient)
        new = x + STEP * first * direction
        shared = rows_of(sample.after)
        s = new - x
        y = loss_of(new, shared)[1] - loss_of(x, shared)[1]
        if s @ y > 1e-10 * (s @ s):
            pairs = [*pairs, (s, y)][-MEMORY:]
        x = new
    return points, values


def sampled_model(strategy, **settings):
    return tasks.make_model(
        strategy,
        memory=MEMORY,
        line_search=line_search.FixedStep(STEP),
        **{"sample": SAMPLE, "overlap": OVERLAP, **settings},
    )


def fit(model, epochs, **arguments):
    x, y = tasks.data()
    return model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **arguments,
    ).history["loss"]


def test_the_trajectory_is_that_of_the_paper(float64):
    strategy = tfdist.SandblasterStrategy(portions_per_worker=PORTIONS)
    model = sampled_model(strategy)
    points, values = multi_batch(15)
    found = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(tasks.weights_of(self.model))

    # The second `fit` goes on with the next sample.
    losses = fit(model, 6, callbacks=[Looks()])
    losses += fit(model, 9, callbacks=[Looks()])
    np.testing.assert_allclose(found, points, atol=1e-9)
    values_found = [one["value"] for one in strategy.iterations]
    np.testing.assert_allclose(values_found, values, rtol=1e-9)
    np.testing.assert_allclose(losses, values, rtol=1e-9)
    # One evaluation of a sample for each point, and of a first one another.
    made = [one["evaluations"] for one in strategy.iterations]
    assert made == [2] + 5 * [1] + [2] + 8 * [1]


@pytest.mark.nightly
def test_a_loaded_model_goes_on_with_the_next_sample(float64, tmp_path):
    strategy = tfdist.SandblasterStrategy(portions_per_worker=PORTIONS)
    model = sampled_model(strategy)
    expected = fit(sampled_model(strategy), 6)
    found = fit(model, 3)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [*found, *fit(loaded, 3)] == expected


@pytest.mark.nightly
@pytest.mark.parametrize("factor", [1, 2])
def test_a_loaded_memory_is_that_of_one_loss(factor, float64, tmp_path):
    strategy = tfdist.SandblasterStrategy(portions_per_worker=PORTIONS)
    model = sampled_model(strategy)
    fit(model, 3)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
        loaded.compile(
            loaded.optimizer,
            loss=lambda *pair: (
                factor
                * keras.losses.sparse_categorical_crossentropy(
                    *pair, from_logits=True
                )
            ),
        )
    fit(loaded, 1)
    # Without pairs, it is divided by the length of the gradient.
    has_pairs = strategy.iterations[-1]["step"] == STEP
    assert has_pairs == (factor == 1)


def test_simulated_samples_are_the_same(float64):
    def build():
        return sampled_model(tf.distribute.get_strategy())

    _, values = multi_batch(5)
    history = simulation.simulate(
        build,
        tasks.data(),
        f"sandblaster:portions_per_worker={PORTIONS // 3}",
        num_workers=3,
        batch_size=BATCH,
        epochs=5,
        evaluate_every=0.25,
    )
    rows = history.evaluations[1:]
    np.testing.assert_allclose(
        [row["train_loss"] for row in rows], values, rtol=1e-6
    )
    # Six evaluations of half of the data.
    assert rows[-1]["epoch"] == 6 * SAMPLE
    counted = history.jobs[history.jobs["accepted"]]
    assert len(counted) == 6 * SAMPLE * PORTIONS


@pytest.mark.nightly
def test_a_fixed_step_is_taken_whatever_the_loss_is():
    """But where it is not finite: the memory is emptied, and it begins anew."""

    def parabola(x):
        value = x @ x / 2 if abs(x[0]) < 10 else np.inf
        return value, x

    shards = functions.make_shards(np.ones(1), 1, MEMORY)
    one = minimizer.Minimizer(shards, MEMORY, line_search.FixedStep(3.0))
    evaluate = functions.evaluator(parabola, shards)
    made = [one.iterate(evaluate) for _ in range(4)]
    # At -2, 4, -8, and not 16 but 3 along the gradient: -5.
    assert [iteration.value for iteration in made] == [2.0, 8.0, 32.0, 12.5]
    assert {iteration.outcome for iteration in made} == {
        minimizer.Outcome.MOVED
    }
    restarted = [iteration.restarted for iteration in made]
    assert restarted == [False, False, False, True]


class Noisy:
    """A quadratic whose portions differ, and what evaluates its samples."""

    def __init__(self, shards, number=6):
        random = np.random.default_rng(1)
        self.shards = shards
        self.targets = random.normal(size=(PORTIONS, number))
        self.samples = samples.Samples(PORTIONS, SAMPLE, OVERLAP)
        # Negative curvature on a portion in three.
        self.signs = np.where(np.arange(PORTIONS) % 3, 1.0, -0.5)

    def gradient(self, x, portions):
        return np.mean(
            [self.signs[p] * (x - self.targets[p]) for p in portions], 0
        )

    def __call__(self, point, gradient, number, before, after):
        x = self.shards.fetch(point).numpy()
        sample = self.samples[number]
        for name, portions in (
            (gradient, sample.portions),
            (before, sample.before),
            (after, sample.after),
        ):
            made = tf.constant(self.gradient(x, portions))
            self.shards.load(name, made)
        return float(x @ x)


@pytest.mark.nightly
@pytest.mark.parametrize("damping", [False, True])
def test_pairs_of_too_little_curvature_are_left_out_or_damped(damping):
    start = np.linspace(-1, 1, 6)
    shards = functions.make_shards(start, 1, MEMORY)
    noisy = Noisy(shards)
    one = minimizer.Minimizer(
        shards,
        MEMORY,
        line_search.FixedStep(0.3),
        damping,
        0.0,
        has_samples=True,
    )
    x, pairs = start, []
    for k in range(8):
        one.iterate(noisy)
        sample = noisy.samples[k]
        gradient = noisy.gradient(x, sample.portions)
        direction = functions.two_loop(pairs, gradient)
        if gradient @ direction >= 0:
            pytest.fail("The example has no descent direction.")
        first = 1.0 if pairs else 1.0 / np.sqrt(gradient @ gradient)
        s = 0.3 * first * direction
        y = noisy.gradient(x + s, sample.after)
        y = y - noisy.gradient(x, sample.after)
        product = -0.3 * first * gradient  # Of B and s.
        if damping and pairs and s @ y < 0.2 * (s @ product):
            # Nocedal and Wright 2006, procedure 18.2.
            part = 0.8 * (s @ product) / (s @ product - s @ y)
            y = part * y + (1 - part) * product
        if s @ y > 1e-10 * (s @ s):
            pairs = [*pairs, (s, y)][-MEMORY:]
        x = x + s
        np.testing.assert_allclose(
            shards.fetch(one.point).numpy(), x, rtol=1e-8, atol=1e-12
        )
