"""`tfdist advise`, in this process, with steps that are given by flags."""

import functools
import json

import numpy as np
import pytest

from tests.cli import own_model_and_data
from tests.simulation.histories import made
from tfdist import simulation
from tfdist.cli import advise
from tfdist.cli import model_and_data
from tfdist.cli import simulation_flags
from tfdist.cli import virtual_cluster
from tfdist.cli.main import main
from tfdist.simulation import comparison
from tfdist.simulation.advise import OVERHEAD_SECONDS
from tfdist.simulation.measurement import Variable
from tfdist.simulation.verdict import MIN_SPEED_UP
from tfdist.strategies import registry

# The task's gradient has 39720 bytes.
_TASK = ["--task=digits", "--strategies=sync,async"]


@pytest.fixture
def few_steps(monkeypatch):
    """Predictions play a sixth of the steps that users' do."""
    advised = functools.partial(simulation.advise, steps=10)
    monkeypatch.setattr(simulation, "advise", advised)


def _figures(tmp_path, *arguments):
    path = tmp_path / "advice.json"
    assert main(["advise", *arguments, f"--json={path}"]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.nightly
def test_it_measures_and_says_what_to_do(tmp_path, capsys):
    figures = _figures(
        tmp_path,
        *_TASK,
        "--num_workers=2",
        "--steps_measured=3",
        "--bandwidth_gbps=0.001",
    )
    measured = figures["measurement"]
    assert measured["batch_size"] == 16
    assert len(measured["compute_seconds"]) == 3
    assert min(measured["compute_seconds"]) > 0
    assert measured["push_bytes"] == measured["pull_bytes"] == 39720
    # A megabit per second takes a third of a second for it.
    assert figures["recommended"] is None
    text = capsys.readouterr().out
    assert "Stay on one machine" in text
    assert "sends 39.7 kB" in text


@pytest.mark.nightly
def test_a_step_of_another_machine_and_stragglers(tmp_path, capsys):
    figures = _figures(
        tmp_path,
        *_TASK,
        "--num_workers=4,2",
        "--step_seconds=1",
        "--slow=0:3",
        "--overhead_ms=0",
        "--server_ms=0.001",
    )
    rates = {
        (p["method"], p["num_workers"]): p["speed_up"]
        for p in figures["predictions"]
    }
    # All wait for the one that takes three seconds, or nobody does.
    assert rates["sync", 2] == pytest.approx(2 / 3, rel=1e-3)
    assert rates["sync", 4] == pytest.approx(4 / 3, rel=1e-3)
    assert rates["async", 2] == pytest.approx(1 + 1 / 3, rel=0.05)
    assert rates["async", 4] == pytest.approx(3 + 1 / 3, rel=0.05)
    assert figures["recommended"]["method"] == "async"
    text = " ".join(capsys.readouterr().out.split())
    assert "By speed alone, use async with 4 workers" in text
    assert "is not known, as nothing was trained" in text
    assert figures["learning"] is None
    for assumption in (
        "The cluster: 1 server",
        "takes 1e+03 ms (--step_seconds), with --slow=0:3",
        "a server for 0.001 ms (--server_ms)",
        "links without a limit",
        "exchange 0 ms besides",
    ):
        assert assumption in text


@pytest.mark.nightly
@pytest.mark.usefixtures("few_steps")
def test_a_distribution_can_stand_for_what_is_measured(tmp_path):
    figures = _figures(
        tmp_path,
        "--task=digits",
        "--strategies=sync",
        "--num_workers=2",
        "--step_seconds=1",
        "--compute=constant:0.5",
        "--straggler=1:0.5",
        "--overhead_ms=0",
        "--server_ms=0.001",
    )
    (prediction,) = figures["predictions"]
    # One waits half a second for the other; one machine takes a second.
    assert prediction["speed_up"] == pytest.approx(2, rel=1e-3)
    assert prediction["waiting"] == pytest.approx(0.25, rel=1e-2)


@pytest.mark.nightly
@pytest.mark.usefixtures("few_steps")
def test_an_own_model_that_is_best_on_one_machine(tmp_path, capsys):
    own = own_model_and_data.write(tmp_path)
    figures = _figures(
        tmp_path,
        f"--model={own}:model",
        f"--data={own}:pair",
        "--batch_size=8",
        "--strategies=async",
        "--num_workers=2",
        "--step_seconds=1",
        "--overhead_ms=9000",
        "--epochs=1",
    )
    assert figures["measurement"]["batch_size"] == 8
    # A kernel of three by two, and a bias.
    assert figures["measurement"]["push_bytes"] == 4 * 8
    assert figures["recommended"] is figures["learning"] is None
    assert "Nothing was trained: --epochs is" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.usefixtures("few_steps")
def test_with_epochs_the_verdict_is_of_a_target(tmp_path, monkeypatch, capsys):
    """The most examples per second are not the soonest at a target."""

    def simulated(model_fn, data, method, *, num_workers, **others):
        final = {"sync": (0.1, 0.2, 0.9), "async": (0.1, 0.9, 0.9)}
        values = final.get(method.name, (0.1, 0.1, 0.9))
        seconds = 2.0 if num_workers > 1 else 10.0
        return made(method.name, num_workers, values=values, seconds=seconds)

    monkeypatch.setattr(comparison, "simulate", simulated)
    figures = _figures(
        tmp_path, *_TASK, "--num_workers=4", "--step_seconds=1", "--epochs=1"
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "not known" not in text
    # Evaluated at 0, a half and a whole of one epoch; 95 % of 0.9.
    assert (
        "Use async with 4 workers: it reaches accuracy 0.855 after 0.50 epochs "
        "(2.00 updates, 1.00 s), at " in text
    )
    assert "One machine takes 1.00 epochs (4.00 updates, 10.0 s), 10.0" in text
    rows = {row["method"]: row for row in figures["learning"]["rows"]}
    assert rows["sync"]["epochs_to_target"] == 1.0
    assert rows["async"]["updates_to_target"] == 2.0


@pytest.fixture
def nothing_is_measured(monkeypatch):
    """Measuring ends the command, as an interrupt does."""

    def measure(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "measure", measure)


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("model", "strategies", "parts"),
    [
        ("constrained", "async,sync", ["'sync' does not fit", "constraints"]),
        ("adam", "async,dana", ["'dana' does not fit", "SGD"]),
    ],
)
def test_methods_that_cannot_train_the_model_are_refused_before_measuring(
    tmp_path, capsys, model, strategies, parts
):
    own = own_model_and_data.write(tmp_path)
    arguments = [f"--model={own}:{model}", f"--data={own}:pair"]
    assert main(["advise", *arguments, f"--strategies={strategies}"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist advise: error: Flag --strategies: ")
    for part in parts:
        assert part in message


def test_of_the_default_methods_those_that_fit_the_model_are_tried(
    tmp_path, capsys, monkeypatch
):
    fitting = []

    def measure(*arguments, **settings):
        variables = [Variable((8,))]
        return simulation.Measurement(32, [0.1], 0.01, 0.1, variables)

    def advised(*arguments, strategies, **settings):
        fitting.extend(strategies)
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "measure", measure)
    monkeypatch.setattr(simulation, "advise", advised)
    own = own_model_and_data.write(tmp_path)
    arguments = [f"--model={own}:constrained", f"--data={own}:pair"]
    assert main(["advise", *arguments]) == 130
    assert fitting == ["bounded_staleness", "async"]
    text = " ".join(capsys.readouterr().out.split())
    for name in ("sync", "backup_workers:backup_workers=1", "softsync"):
        assert f"Left out: '{name}' does not fit the model" in text


WRONG = {
    "sandblaster": (
        ["--strategies=sandblaster"],
        ["--strategies", "tfdist simulate"],
    ),
    "workers": (["--num_workers=2,two"], ["--num_workers", "2,two"]),
    "strategy": (["--strategies=sink"], ["--strategies", "sync", "'sink'"]),
    "twice": (
        ["--strategies=async,async"],
        ["--strategies=async,async", "each method once"],
    ),
    "setting": (
        ["--strategies=backup_workers:backup_workers=2", "--num_workers=2"],
        ["--strategies", "backup_workers", "2"],
    ),
    "few_for_backups": (
        ["--strategies=backup_workers", "--num_workers=3"],
        ["--strategies", "less than 4 workers"],
    ),
    "compute": (["--compute=constant:0"], ["--compute=constant:0", "above 0"]),
    "epochs": (["--epochs=0"], ["--epochs=0", "at least 1"]),
    "steps": (["--steps_measured=0"], ["--steps_measured", "at least 1"]),
    "step_seconds": (["--step_seconds=0"], ["--step_seconds", "above 0"]),
    "overhead": (["--overhead_ms=-1"], ["--overhead_ms", "at least 0"]),
    "speed_up": (["--min_speed_up=nan"], ["--min_speed_up", "above 0"]),
    "json": (["--json=no/such/file"], ["--json", "directory that exists"]),
    "json_directory": (["--json=."], ["--json=.", "be a file"]),
    "failure": (["--failure=0:1"], ["--failure", "nobody dies"]),
    "slow": (["--slow=2:3", "--num_workers=2,4"], ["--slow", "from 0 to 1"]),
    "rest": (["digits"], ["digits", "flags alone"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, monkeypatch, capsys):
    """Before data is loaded, or made."""
    monkeypatch.delattr(model_and_data, "make")
    arguments, parts = WRONG[name]
    assert main(["advise", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist advise: error: ")
    for part in parts:
        assert part in message


def test_help_names_every_flag(capsys):
    assert main(["advise", "--help"]) == 0
    text = capsys.readouterr().out
    for name in set(advise.define_flags()) - {"h", *advise._UNUSED}:
        assert f"--{name}:" in text or f"--[no]{name}:" in text


def test_help_has_the_defaults_of_this_command_alone(capsys):
    assert main(["advise", "--help"]) == 0
    advised = " ".join(capsys.readouterr().out.split())
    assert main(["simulate", "--help"]) == 0
    simulated = " ".join(capsys.readouterr().out.split())
    assert "Default: measured on this machine." in advised
    assert "gamma:0.1:100" not in advised and "--model, 2" not in advised
    assert "repository measures it. Default: 2." in advised
    assert "Default: 0; with --model, 2." in simulated
    for text in (advised, simulated):
        assert "repeat this option" not in text
        assert "(default:" not in text
        assert "a comma separated list" not in text


def test_defaults_are_those_of_the_library():
    flags = advise.define_flags()
    default = tuple(flags["strategies"].default)
    assert default == registry.names("synchronization")
    assert flags["min_speed_up"].default == MIN_SPEED_UP
    assert flags["overhead_ms"].default is None
    assert simulation_flags.OVERHEAD_MS == 1e3 * OVERHEAD_SECONDS


@pytest.mark.nightly
def test_a_step_of_one_machine_that_is_given_has_the_tail_too(
    tmp_path, monkeypatch
):
    one_machine = []

    def advised(*arguments, one_machine_seconds, **settings):
        one_machine.append(one_machine_seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "advise", advised)
    own = own_model_and_data.write(tmp_path)
    arguments = [f"--model={own}:model", f"--data={own}:pair"]
    arguments += ["--step_seconds=1", "--strategies=async"]
    for more in ([], ["--compute=constant:0.5"]):
        given = [*arguments, *more, "--tail=0.5:10"]
        assert main(["advise", *given]) == 130
    # Half of the steps take 10 s longer.
    assert one_machine == [6.0, 6.0]


def test_one_machine_is_the_fastest_of_recorded_workers(tmp_path, monkeypatch):
    recorded = simulation.Recorded([[2.0, 4.0], [1.0, 3.0], [0.1]])

    class Trace:
        def compute(self):
            return recorded

    monkeypatch.setattr(simulation, "read_trace", lambda log_dir: Trace())
    values = advise.define_flags()
    values(["advise", f"--trace={tmp_path}", "--tail=0.5:10"])
    # Two of them are simulated.
    alone = virtual_cluster.make(values, [1, 2]).undisturbed
    assert alone.mean(0) == 2.0 + 5.0
    stream = np.random.default_rng(0)
    drawn = [alone.draw(0, step, stream) % 10 for step in range(4)]
    assert drawn == [1.0, 3.0, 1.0, 3.0]


@pytest.mark.nightly
def test_the_tail_of_any_worker_is_the_one_machines_too(tmp_path):
    figures = _figures(
        tmp_path,
        "--task=digits",
        "--strategies=async",
        "--num_workers=4",
        "--compute=constant:0.1",
        "--tail=0.05:1",
        "--overhead_ms=0",
        "--server_ms=0.001",
    )
    update = figures["measurement"]["update_seconds"]
    (prediction,) = figures["predictions"]
    assert figures["measurement"]["step_seconds"] == pytest.approx(
        0.15 + update
    )
    # But for chance: 5 % of some 240 steps are slow.
    assert prediction["speed_up"] == pytest.approx(4, rel=0.25)
