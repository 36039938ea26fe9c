"""Programs in the README and the documents run as shown."""

import json
import pathlib
import re
import zipfile

import pytest

from tests.multi_process import scripts

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")
SIMULATOR = (DOCS / "simulator.md").read_text("utf-8")
AVERAGING = (DOCS / "averaging.md").read_text("utf-8")
CHECKPOINTS = (DOCS / "checkpoints.md").read_text("utf-8")
CODISTILLATION = (DOCS / "codistillation.md").read_text("utf-8")
PIPELINES = (DOCS / "pipelines.md").read_text("utf-8")
PLACEMENT = (DOCS / "placement.md").read_text("utf-8")


@pytest.mark.smoke
def test_program_of_the_readme_trains_on_a_cluster(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0])
    outputs = scripts.run(
        tmp_path,
        script,
        [],
        {"ps": 1, "worker": 2},
        environ={"TFDS_DATA_DIR": str(tmp_path)},
    )
    # 1,437 images in batches of 32 make 45 updates in each of 15 epochs.
    assert "Updates applied: 675;" in outputs["worker-0"]
    assert re.search(r"12/12 .* accuracy: [0-9.]+", outputs["worker-0"])
    with zipfile.ZipFile(tmp_path / "digits.keras") as saved:
        assert saved.testzip() is None


@pytest.mark.nightly
def test_program_of_the_simulator_runs():
    (program,) = re.findall(r"```python\n(.*?)```", SIMULATOR, re.DOTALL)
    names = {}
    exec(compile(program, "docs/simulator.md", "exec"), names)
    history = names["history"]
    assert history.num_workers == 16
    # The worker that died lost one gradient and came back.
    assert history.summary()["dropped"] == 1
    assert history.final("accuracy") > history.evaluations[0]["accuracy"]


@pytest.mark.nightly
def test_method_of_one_s_own_trains():
    (program,) = re.findall(r"```python\n(.*?)```", AVERAGING, re.DOTALL)
    names = {}
    exec(compile(program, "docs/averaging.md", "exec"), names)
    model, strategy = names["model"], names["strategy"]
    # 256 / 8 batches in each of 3 epochs; 5 to an update, and a rest of 1.
    assert int(model.optimizer.iterations.numpy()) == 96
    assert strategy.updates_applied() == [20]
    assert model.evaluate(names["x"], names["y"], verbose=0) < 0.01


@pytest.mark.nightly
def test_program_of_codistillation_runs(tmp_path, monkeypatch):
    (program,) = re.findall(r"```python\n(.*?)```", CODISTILLATION, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for group in range(2):
        told = {"codistillation": {"group": group, "num_groups": 2}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(told))
        names = {}
        exec(compile(program, "docs/codistillation.md", "exec"), names)
    # The second found what the first has left.
    assert names["exchange"].bytes_read > 0
    assert names["model"].history.history["codistillation_loss"][-1] > 0
    assert (tmp_path / "runs" / "model.keras").exists()


@pytest.mark.nightly
def test_programs_of_checkpoints_run(tmp_path, monkeypatch):
    first, own = re.findall(r"```python\n(.*?)```", CHECKPOINTS, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for began_with in (0, 2):
        names = {}
        exec(compile(first, "docs/checkpoints.md", "exec"), names)
        assert names["checkpoint"].resumed_epoch == began_with
    exec(compile(own, "docs/checkpoints.md", "exec"), names)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["decisions", "elasticity", "nonfinite", "operations"]
)
def test_short_programs_run(tmp_path, monkeypatch, name):
    text = (DOCS / f"{name}.md").read_text("utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs
    monkeypatch.chdir(tmp_path)
    for program in programs:
        exec(compile(program, f"docs/{name}.md", "exec"), {})


@pytest.mark.nightly
def test_programs_of_placement_run(capsys):
    programs = re.findall(r"```python\n(.*?)```", PLACEMENT, re.DOTALL)
    assert len(programs) == 3
    names = {}
    for program in programs:
        exec(compile(program, "docs/placement.md", "exec"), names)
    assert "--> CPU:2" in capsys.readouterr().out
    homes = {v.path: v.value.device[-5:] for v in names["model"].variables}
    assert {homes[path] for path in homes if "low" in path} == {"CPU:1"}


@pytest.mark.nightly
def test_program_of_pipelines_runs():
    (program,) = re.findall(r"```python\n(.*?)```", PIPELINES, re.DOTALL)
    names = {}
    exec(compile(program, "docs/pipelines.md", "exec"), names)
    losses = names["model"].history.history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert [s.names for s in names["model"].stages] == [
        ["in"],
        ["hidden"],
        ["out"],
    ]
