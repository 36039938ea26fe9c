"""What the flags of simulations mean, and how wrong ones are refused."""

import sys

from absl import flags
import numpy as np
import pytest

from tests import nightly
from tests import waits
from tests.cli import own_model_and_data
from tfdist import simulation
from tfdist.cli import method_checks
from tfdist.cli import model_and_data as model_and_data_lib
from tfdist.cli import simulation_flags
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.cli import virtual_cluster


def parsed(*argv):
    values = flags.FlagValues()
    simulation_flags.define_problem(values)
    simulation_flags.define_learning_rate(values)
    simulation_flags.define_training(values)
    simulation_flags.define_seed(values)
    simulation_flags.define_cluster(values)
    assert not usage.parse(values, argv)
    simulation_flags.check(values)
    return values


def cluster(*argv, num_workers=4):
    return virtual_cluster.make(parsed(*argv), num_workers)


def model_and_data(*argv):
    return model_and_data_lib.make(parsed(*argv))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return own_model_and_data.write(tmp_path_factory.mktemp("own"))


def own_flags(own, model="model", data="pair"):
    return f"--model={own}:{model}", f"--data={own}:{data}"


# The cluster.


def test_the_default_is_a_cluster_without_trouble():
    made = cluster()
    assert repr(made.compute) == "Gamma(0.1, shape=100)"
    assert made.network == simulation.Network()
    assert made.failures == ()
    assert (made.num_servers, made.worker_timeout) == (1, 10.0)


def test_every_flag_of_the_cluster():
    made = cluster(
        "--num_servers=2",
        "--compute=constant:0.2",
        "--slow=0:3",
        "--slow=1:2",
        "--straggler=1:0.5",
        "--straggler=2:0.25:lognormal",
        "--tail=0.1:5",
        "--latency_ms=2",
        "--bandwidth_gbps=10",
        "--server_bandwidth_gbps=40",
        "--server_ms=3",
        "--failure=3:1.5",
        "--failure=2:1:4",
        "--worker_timeout=7",
    )
    means = [made.compute.mean(worker) for worker in range(4)]
    np.testing.assert_allclose(means, [1.1, 1.4, 0.95, 0.7])
    np.testing.assert_allclose(made.undisturbed.mean(0), 0.7)
    assert "LogNormal(0.25, sigma=1)" in repr(made.compute)
    assert made.network == simulation.Network(0.002, 10.0, 40.0, 0.003)
    assert made.failures == (
        simulation.Failure(3, 1.5),
        simulation.Failure(2, 1.0, 4.0),
    )
    assert made.arguments["num_servers"] == 2
    assert made.arguments["worker_timeout"] == 7.0


def test_the_cluster_is_what_timing_takes():
    made = cluster("--compute=constant:1", "--slow=0:2", num_workers=2)
    history = simulation.timing(
        "async", num_workers=2, steps=8, **made.arguments
    )
    assert history.seconds == 8.0


def test_a_trace_gives_the_compute_times(tmp_path, monkeypatch):
    class Trace:
        def compute(self):
            return simulation.Constant(0.7)

    monkeypatch.setattr(
        simulation,
        "read_trace",
        lambda path: Trace() if path == str(tmp_path) else None,
        raising=False,
    )
    made = cluster(f"--trace={tmp_path}", "--slow=1:2")
    assert made.compute.mean(1) == pytest.approx(1.4)


def test_a_trace_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(usage.UsageError, match="--trace") as caught:
        cluster(f"--trace={tmp_path}")
    assert str(tmp_path) in str(caught.value)


WRONG_CLUSTER = {
    "compute": ("--compute=gauss:1", "--compute=gauss:1", "gamma"),
    "compute_and_trace": (
        "--compute=gamma:1 --trace=.",
        "--compute",
        "--trace",
    ),
    "trace": ("--trace=nowhere", "--trace=nowhere", "directory"),
    "straggler_form": ("--straggler=1", "--straggler=1", "WORKER:SECONDS"),
    "straggler_kind": ("--straggler=1:1:gauss", "1:1:gauss", "pareto"),
    "straggler_absent": ("--straggler=4:1", "--straggler=4:1", "from 0 to 3"),
    "slow": ("--slow=1", "--slow=1", "WORKER:FACTOR"),
    "slow_twice": ("--slow=1:2 --slow=1:3", "--slow=1:3", "once"),
    "tail": ("--tail=2:1", "--tail=2:1", "PROBABILITY:SECONDS"),
    "failure": ("--failure=1:5:4", "--failure=1:5:4", "UNTIL later than AT"),
    "failure_absent": ("--failure=4:1", "--failure", "from 0 to 3"),
    "dead_twice": ("--failure=0:3 --failure=0:5", "--failure", "dies again"),
    "bandwidth": ("--bandwidth_gbps=0", "--bandwidth_gbps=0", "above 0"),
    "timeout": ("--worker_timeout=inf", "--worker_timeout=inf", "above 2"),
    "heartbeats": ("--worker_timeout=2", "--worker_timeout=2", "above 2"),
}


@pytest.mark.parametrize("name", WRONG_CLUSTER)
def test_a_wrong_cluster_is_refused(name):
    argv, received, allowed = WRONG_CLUSTER[name]
    with pytest.raises(usage.UsageError) as caught:
        cluster(*argv.split())
    assert received in str(caught.value)
    assert allowed in str(caught.value)


def test_workers_must_be_there_in_the_smallest_cluster():
    cluster("--slow=3:2", num_workers=[4, 16])
    with pytest.raises(usage.UsageError, match="from 0 to 3"):
        cluster("--slow=4:2", num_workers=[16, 4])


# The model and the data.


@pytest.mark.nightly
def test_a_task_is_the_default():
    made = model_and_data()
    assert made.name == "digits"
    assert (made.batch_size, made.learning_rate) == (16, 0.1)
    assert made.momentum is None
    assert made.num_batches == 90


def test_a_task_with_other_numbers():
    made = model_and_data(
        "--task=teacher",
        "--batch_size=64",
        "--learning_rate=0.3",
        "--momentum=0.5",
    )
    assert (made.batch_size, made.learning_rate) == (64, 0.3)
    assert made.momentum == 0.5
    model = made.model_fn_of(made.learning_rate, 0.25)()
    assert float(model.optimizer.learning_rate) == pytest.approx(0.3)
    assert model.optimizer.momentum == 0.25


@pytest.mark.nightly
def test_an_own_model_says_what_no_flag_says(own):
    made = model_and_data(*own_flags(own))
    assert made.name == "model"
    assert (made.learning_rate, made.momentum) == (0.25, 0.5)
    assert made.batch_size == 32
    assert len(made.train[0]) == 64 and len(made.validation[0]) == 20


def test_flags_change_an_own_model(own):
    made = model_and_data(
        *own_flags(own), "--learning_rate=0.125", "--momentum=0.75"
    )
    assert (made.learning_rate, made.momentum) == (0.125, 0.75)
    model_fn = made.model_fn_of(made.learning_rate, 0.0)
    first, second = model_fn(), model_fn()
    assert first is not second
    assert float(second.optimizer.learning_rate) == 0.125
    assert second.optimizer.momentum == 0.0


@pytest.mark.parametrize("data", nightly.also(["examples"], ["dataset"]))
def test_a_tenth_is_held_out_where_there_is_no_validation(data, own):
    made = model_and_data(*own_flags(own, data=data))
    assert len(made.train[0]) == 72 and len(made.validation[0]) == 8
    everything = np.concatenate([made.train[0], made.validation[0]])
    assert len(np.unique(everything, axis=0)) == 80


@pytest.mark.nightly
def test_a_schedule_is_left_alone(own):
    made = model_and_data(*own_flags(own, "scheduled"))
    assert made.learning_rate is None
    made.model_fn_of(None, 0.0)()


def test_a_module_can_be_named_as_python_names_it(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    function = user_function.load_function("model", "own:model")
    assert function().optimizer.momentum == 0.5


WRONG_PROBLEM = {
    "task": ("--task=mnist", "--task=mnist", "digits|text|teacher"),
    "model_alone": ("--model=OWN:model", "--model", "together with --data"),
    "not_python": (
        "--model=DIR/bad.py:model --data=OWN:pair",
        "--model=DIR/bad.py:model",
        "DIR/bad.py:2: SyntaxError: invalid syntax",
    ),
    "data_unfit": (
        "--model=OWN:model --data=OWN:five_wide",
        "--data=OWN:five_wide, with x of shape (72, 5) and type float32",
        "to have value 3, but received",
    ),
    "labels_unfit": (
        "--model=OWN:model --data=OWN:one_hot",
        "--data=OWN:one_hot",
        "y of shape (72, 2)",
    ),
    "both": (
        "--task=text --model=OWN:model --data=OWN:pair",
        "--model",
        "--task",
    ),
    "form": (
        "--model=own.py --data=OWN:pair",
        "--model=own.py",
        "FILE.py:FUNCTION or package.module:FUNCTION",
    ),
    "no_module": (
        "--model=no_such.module:model --data=OWN:pair",
        "--model=no_such.module:model",
        "No module named 'no_such'",
    ),
    "no_function": (
        "--model=OWN:modle --data=OWN:pair",
        "OWN:modle",
        "a function",
    ),
    "no_model": (
        "--model=OWN:nothing --data=OWN:pair",
        "--model=OWN:nothing",
        "must return a compiled keras.Model",
    ),
    "not_compiled": (
        "--model=OWN:not_compiled --data=OWN:pair",
        "--model=OWN:not_compiled",
        "must return a compiled model",
    ),
    "no_data": (
        "--model=OWN:model --data=OWN:nothing",
        "--data=OWN:nothing",
        "((x, y), (x_validation, y_validation)) or (x, y)",
    ),
    "uneven": (
        "--model=OWN:model --data=OWN:uneven",
        "--data=OWN:uneven",
        "[80, 7]",
    ),
    "batch": (
        "--model=OWN:model --data=OWN:pair --batch_size=65",
        "--batch_size=65",
        "at most 64",
    ),
    "rate": ("--learning_rate=0", "--learning_rate=0", "above 0"),
    "momentum": ("--momentum=1", "--momentum=1", "below 1"),
    "seed": ("--seed=-1", "--seed=-1", "at least 0"),
    "epochs": ("--epochs=0", "--epochs=0", "at least 1"),
    "evaluate": ("--evaluate_every=0", "--evaluate_every=0", "above 0"),
}


@pytest.mark.parametrize("name", WRONG_PROBLEM)
def test_a_wrong_problem_is_refused(name, own):
    (own.parent / "bad.py").write_text("import keras\ndef model(:\n")
    argv, received, allowed = (
        text.replace("OWN", str(own)).replace("DIR", str(own.parent))
        for text in WRONG_PROBLEM[name]
    )
    with pytest.raises(usage.UsageError) as caught:
        model_and_data(*argv.split())
    assert received in str(caught.value)
    assert allowed in str(caught.value)


def test_a_model_that_has_been_trained_is_not_trained_on(own):
    made = model_and_data(*own_flags(own, "always_one"))
    with pytest.raises(usage.UsageError, match="a new model at each call"):
        made.model_fn_of(0.1, 0.0)()


def test_an_error_in_the_users_code_is_shown_as_it_is(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import does_not_exist\n")
    with pytest.raises(ModuleNotFoundError, match="does_not_exist"):
        user_function.load_function("model", f"{path}:model")


def test_an_error_in_the_users_layers_is_shown_as_it_is(own):
    with pytest.raises(ValueError, match="a layer of mine") as caught:
        model_and_data(*own_flags(own, "own_layer"))
    assert caught.type is ValueError  # And no UsageError, which is one.


# Methods.


@pytest.mark.parametrize(
    ("method", "counts", "parts"),
    nightly.also(
        [("sink", [2], ["--strategy", "'sink'", "bounded_staleness"])],
        [
            (
                "backup_workers:backup_workers=2",
                [4, 2],
                ["--strategy", "--num_workers", "num_workers=2"],
            ),
            (
                "async",
                [2, 5],
                ["--num_workers=5", "at most 4", "of 16 examples"],
            ),
            (
                "dana:momentum=2",
                [2],
                ["--strategy", "dana:momentum=2", "less than 1"],
            ),
            (
                "peer_to_peer:warmup_peers=1",
                [2],
                ["Flag --strategy: Argument", "without `warmup_peers`"],
            ),
        ],
    ),
)
def test_methods_that_do_not_fit_are_refused(method, counts, parts, own):
    made = model_and_data(*own_flags(own), "--batch_size=16")
    with pytest.raises(usage.UsageError) as caught:
        method_checks.check("strategy", [method], counts, made)
    for part in parts:
        assert part in str(caught.value)


def test_a_server_that_takes_no_time_is_not_what_is_measured(own):
    assert parsed("--server_ms=0").server_ms == 0
    with pytest.raises(usage.UsageError, match="--server_ms must be above 0"):
        parsed("--server_ms=0", f"--model={own}:model", f"--data={own}:pair")


@pytest.mark.parametrize(
    ("model", "method"),
    nightly.also([("adam", "dana")], [("ftrl", "peer_to_peer")]),
)
def test_an_optimizer_that_does_not_fit_is_refused(model, method, own):
    made = model_and_data(*own_flags(own, model))
    message = f"--strategy: '{method}' does not fit the model"
    with pytest.raises(usage.UsageError, match=message):
        method_checks.check("strategy", [method], [2], made)


def test_tensorflow_waits_until_it_is_needed():
    program = (
        "import sys\n"
        "from tfdist.cli.main import main\n"
        "assert main(['simulate', '--help']) == 0\n"
        "assert main(['compare', '--help']) == 0\n"
        "assert main(['simulate', '--slow=x']) == 2\n"
        "assert main(['compare', '--num_workers=x']) == 2\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    waits.run([sys.executable, "-c", program], check=True)
