"""Tests of `examples/train_image_classifier.py`, in processes of its own."""

import json
import pathlib

import pytest

from tests.multi_process import scripts
from tfdist import datasets

SCRIPT = (
    pathlib.Path(__file__).parents[2] / "examples" / "train_image_classifier.py"
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tensorflow_datasets")
    datasets.load("digits", data_dir=path)
    return path


def run(directory, code, flags):
    """Runs a program, a string; returns its exit status and its output."""
    program = directory / "program.py"
    program.write_text(code)
    task = scripts.start(directory, program, flags)
    return task.wait(240), task.output()


def train(directory, data_dir, *flags):
    """Trains in one process; see `run`."""
    flags = [f"--output_dir={directory / 'output'}", *flags]
    flags = ["--strategy=none", f"--data_dir={data_dir}", *flags]
    task = scripts.start(directory, SCRIPT, flags)
    return task.wait(240), task.output()


@pytest.mark.nightly
def test_training_in_one_process_writes_summary_and_picture(data_dir, tmp_path):
    status, output = train(tmp_path, data_dir, "--epochs=2")
    assert status == 0, output
    summary = json.loads((tmp_path / "output/summary.json").read_text())
    # 1,437 training images, of which TFDS rounds a tenth to 144 for
    # validation: ceil((1437 - 144) / 32) = 41 steps per epoch.
    assert summary.pop("updates_applied") == 2 * 41
    assert summary.pop("gradients_pushed") == 2 * 41
    assert summary.pop("gradients_accepted") == 2 * 41
    assert summary.pop("test_accuracy") > 0.9
    assert 0 < summary.pop("wall_seconds") < 200
    assert summary == {
        "dataset": "digits",
        "strategy": "none",
        "strategy_flags": {},
        "straggler": [],
        "num_workers": 1,
        "num_ps": 0,
        "epochs": 2,
        "batch_size": 32,
        "optimizer": "adam",
        "learning_rate": 0.001,
        "seed": 1,
        "gradients_dropped": 0,
        "waited_seconds": 0.0,
        "staleness": {"mean": 0.0, "p95": 0.0, "max": 0},
    }
    picture = (tmp_path / "output/training.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert "Test accuracy 0." in output


@pytest.mark.nightly
def test_without_matplotlib_only_the_picture_is_missing(data_dir, tmp_path):
    broken = tmp_path / "import" / "matplotlib"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not installed')")
    status, output = run(
        tmp_path,
        WITH_OTHER_MODULES,
        [
            broken.parent,
            SCRIPT,
            "--strategy=none",
            "--epochs=1",
            "--optimizer=sgd",
            "--batch_size=512",
            f"--data_dir={data_dir}",
            f"--output_dir={tmp_path / 'output'}",
        ],
    )
    assert status == 0, output
    assert "No training.png: matplotlib is not installed" in output
    written = [path.name for path in (tmp_path / "output").iterdir()]
    assert written == ["summary.json"]


# A script, before whose modules come those of a directory.
WITH_OTHER_MODULES = """
import os, runpy, sys
for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
    del sys.modules[name]
sys.path[:0] = sys.argv.pop(1), os.path.dirname(sys.argv[1])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.nightly
def test_unknown_data_set_is_refused_in_the_user_s_words(data_dir, tmp_path):
    status, output = train(tmp_path, data_dir, "--dataset=digit")
    assert status == 1
    last_line = output.strip().splitlines()[-1]
    assert last_line.startswith("flag --dataset=digit: ")
    assert "digits" in last_line
    assert "Traceback" not in output


@pytest.mark.nightly
@pytest.mark.parametrize("job", ["ps", "worker"])
def test_tasks_of_a_cluster_do_not_all_train_alone(data_dir, tmp_path, job):
    """Each would be a chief, a server too, and write the same files."""
    cluster = {"ps": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]}
    task = scripts.start(
        tmp_path,
        SCRIPT,
        [
            "--strategy=none",
            "--epochs=1",
            f"--data_dir={data_dir}",
            f"--output_dir={tmp_path / 'output'}",
        ],
        TF_CONFIG=json.dumps(
            {"cluster": cluster, "task": {"type": job, "index": 0}}
        ),
    )
    assert task.wait(240) == 1, task.output()
    assert (
        "--strategy=none: it must be a method where there are several tasks"
        in task.output()
    )
    assert "Received: a TF_CONFIG with tasks {'worker': 2, 'ps': 1}" in (
        task.output()
    )
    assert not (tmp_path / "output").exists()


# Of settings of strategies one of each kind: all others are in the tests of
# the registry and of the methods.
BAD_FLAGS = {
    "--epochs=0": "flag --epochs=0: 0 is not a positive integer",
    "--epochs=-1": "flag --epochs=-1: -1 is not a positive integer",
    "--epochs=many": "flag --epochs=many: invalid literal",
    "--batch_size=0": "flag --batch_size=0: 0 is not a positive integer",
    "--batch_size=1.5": "flag --batch_size=1.5: invalid literal",
    "--learning_rate=0": "flag --learning_rate=0.0: must be a positive",
    "--learning_rate=-1": "flag --learning_rate=-1.0: must be a positive",
    "--learning_rate=inf": "flag --learning_rate=inf: must be a positive",
    "--learning_rate=nan": "flag --learning_rate=nan: must be a positive",
    "--strategy=asink": "Received: 'asink'. Did you mean 'async'?",
    "--optimizer=adamm": "flag --optimizer=adamm: value should be one of <ad",
    "--epoch=3": "Unknown command line flag 'epoch'",
    "--strategy=backup_workers:backup_workers=-1": "of Sync must be an "
    "integer of at least 0",
    "--strategy=softsync:s=0": "`s` of SoftSync must be an integer",
    "--worker_timeout=0": "flag --worker_timeout=0.0: must be a positive",
    "--worker_timeout=inf": "flag --worker_timeout=inf: must be a positive",
    "--worker_timeout=nan": "flag --worker_timeout=nan: must be a positive",
    "--strategy=bmuf:warmup_steps=-1": "must be an integer of at "
    "least 0. Received: warmup_steps=-1",
    "--strategy=bmuf:block_momentum=1": "must be a number "
    "of at least 0 and less than 1. Received: block_momentum=1",
    "--strategy=diloco:outer_momentum=-1": "`outer_momentum` of DiLoCo must",
    "--strategy=diloco:outer_learning_rate=0": "of DiLoCo must be a "
    "number greater than 0",
    "--strategy=easgd:moving_rate=nan": "`moving_rate` of",
    "--strategy=easgd:synchronization=softsync": "must be Async(), or",
    "--warmup_worker_steps=-1": "flag --warmup_worker_steps=-1: -1 is not a ",
    "--worker_start=later": "should be one of <together|staggered>",
    "--straggler=1": "must be `worker:seconds` or",
    "--straggler=1:-2": "`seconds` must be a finite number of at least 0",
    "--straggler=-1:2": "`workers` must be",
    "--straggler=1:0.5": "flag --straggler=1:0.5: must name a worker",
    f"--output_dir={__file__}": f"flag --output_dir={__file__}: must be a dir",
    f"--output_dir={__file__}/new": "must be a directory, or the path of a ",
    # Of another strategy than the chosen one.
    "--strategy=sync:lambda_0=1": "sync has the settings backup_workers=, "
    "on_drop=, correction=, local_steps=, communication=. Received: 'lambda_0'",
    "--strategy=async --worker_timeout=5": "--strategy=async: --worker_timeout "
    "is for workers that wait for each other only.",
    "--strategy=dana:lambda_0=1": "except with variant='dc'",
    "--strategy=sync --warmup_worker_steps=9": "--warmup_worker_steps is for "
    "workers that do not wait for each other only.",
    "--strategy=async --worker_start=staggered": "--worker_start is for "
    "--warmup_worker_steps of at least 1 only.",
    "--strategy=none --snapshot_dir=x": "--snapshot_dir is for workers that ",
    "--strategy=gossip --snapshot_dir=x": "--snapshot_dir is for workers that "
    "train with parameter servers only.",
    # Methods of one's own.
    "--method_module=no_such_module": "--method_module=no_such_module: No mod",
    "--method_module=no_such_file.py": "No such file",
    # What the strategy refuses.
    "--strategy=easgd:moving_rate=2": "Argument `moving_rate` "
    "of ElasticAveraging must be less than the number of workers",
    "--strategy=sync --worker_timeout=1": "Argument `worker_timeout` "
    "must be a finite number above 2, two heartbeats",
    "digits": "must be flags. Received: ['digits']",
}

PARSE_EACH = """
import json, sys
sys.path.insert(0, sys.argv[1])
import train_image_classifier as script
messages = {}
for argument in json.loads(sys.argv[2]):
    script.FLAGS.unparse_flags()
    try:
        given = ["--strategy=none", "--output_dir=" + sys.argv[3]]
        script.main(script.FLAGS(["script", *given, *argument.split()]))
    except (Exception, SystemExit) as error:
        messages[argument] = str(error)
script.FLAGS.unparse_flags()
script.FLAGS(["script", "--worker_timeout=20", *sys.argv[4:]])
strategy = script.strategy_flags.make_strategy()
steps = strategy.local_steps
messages["made"] = repr(steps.resolve(strategy.synchronization, None, 4))
print(json.dumps(messages))
"""
MADE = "--strategy=easgd:moving_rate=0.8:synchronization=sync"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    table = json.dumps(list(BAD_FLAGS))
    directory = tmp_path_factory.mktemp("messages")
    flags = [SCRIPT.parent, table, directory / "output", MADE]
    status, output = run(directory, PARSE_EACH, flags)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("argument", BAD_FLAGS)
def test_bad_flag_is_refused_by_name(messages, argument):
    assert BAD_FLAGS[argument] in messages[argument]


def test_settings_of_a_text_are_those_of_the_strategy(messages):
    assert "moving_rate=0.8, alpha=0.2" in messages["made"]
