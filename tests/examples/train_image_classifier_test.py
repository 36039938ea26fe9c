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
# A strategy and a monitor as the script sees them, without any cluster.
TRAIN_AS_CHIEF_OR_NOT = """
import json, pathlib, sys, types
sys.path.insert(0, sys.argv[1])
from absl import app
import keras, tensorflow as tf, tfdist
import strategy_flags
import train_image_classifier as script

class Strategy(tf.distribute.OneDeviceStrategy):
    cluster = types.SimpleNamespace(
        is_chief=sys.argv.pop(2) == "chief",
        is_evaluator=False,
        num_workers=2,
        num_ps=1,
    )

class Monitor(keras.callbacks.Callback):
    def __init__(self, log_dir):
        super().__init__()
        self.jsonl_path = str(pathlib.Path(log_dir) / "steps-worker-0.jsonl")
        steps = [{"time": 0.5, "staleness": 0}, {"time": 1.5, "staleness": 3}]
        lines = "".join(json.dumps(step) + chr(10) for step in steps)
        pathlib.Path(self.jsonl_path).write_text(lines)
        self.summary = {
            "updates_applied": 82,
            "gradients_pushed": 84,
            "gradients_dropped": 2,
            "staleness": {"mean": 1.5, "p95": 3.0, "max": 3},
        }

strategy_flags.STRATEGIES["async"] = lambda **common: Strategy("CPU:0")
tfdist.callbacks = types.SimpleNamespace(ClusterMonitor=Monitor)
app.run(script.main, [sys.argv[0], *sys.argv[2:]])
"""


def train_as(directory, role, data_dir):
    """Trains as the chief or another worker; returns its output."""
    output_dir = directory / "output"
    output_dir.mkdir()
    flags = ["--epochs=1", f"--data_dir={data_dir}"]
    flags = [SCRIPT.parent, role, *flags, f"--output_dir={output_dir}"]
    status, output = run(directory, TRAIN_AS_CHIEF_OR_NOT, flags)
    assert status == 0, output
    return output


def test_chief_reports_what_its_monitor_counted(data_dir, tmp_path):
    train_as(tmp_path, "chief", data_dir)
    summary = json.loads((tmp_path / "output/summary.json").read_text())
    assert summary["strategy"] == "async"
    assert (summary["num_workers"], summary["num_ps"]) == (2, 1)
    assert summary["updates_applied"] == 82
    assert summary["gradients_pushed"] == 84
    assert summary["gradients_dropped"] == 2
    assert summary["staleness"] == {"mean": 1.5, "p95": 3.0, "max": 3}
    assert (tmp_path / "output/training.png").exists()


def test_other_workers_report_nothing(data_dir, tmp_path):
    output = train_as(tmp_path, "worker", data_dir)
    written = [path.name for path in (tmp_path / "output").iterdir()]
    assert written == ["steps-worker-0.jsonl"]  # by the monitor
    assert "Epoch" not in output


def test_unknown_data_set_is_refused_in_the_user_s_words(data_dir, tmp_path):
    status, output = train(tmp_path, data_dir, "--dataset=digit")
    assert status == 1
    last_line = output.strip().splitlines()[-1]
    assert last_line.startswith("flag --dataset=digit: ")
    assert "digits" in last_line
    assert "Traceback" not in output


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
    "--strategy=asink": "flag --strategy=asink: value should be one of <none|",
    "--optimizer=adamm": "flag --optimizer=adamm: value should be one of <ad",
    "--epoch=3": "Unknown command line flag 'epoch'",
    "--backup_workers=-1": "flag --backup_workers=-1: -1 is not a non-negative",
    "--on_drop=again": "flag --on_drop=again: value should be one of <next|",
    "--softsync_s=0": "flag --softsync_s=0: 0 is not a positive integer",
    "--softsync_n=0": "flag --softsync_n=0: 0 is not a positive integer",
    "--max_staleness=-1": "flag --max_staleness=-1: -1 is not a non-negative",
    "--worker_timeout=0": "flag --worker_timeout=0.0: must be a positive",
    "--worker_timeout=inf": "flag --worker_timeout=inf: must be a positive",
    "--worker_timeout=nan": "flag --worker_timeout=nan: must be a positive",
    "--period=0": "flag --period=0: 0 is not a positive integer",
    "--warmup_steps=-1": "flag --warmup_steps=-1: -1 is not a non-negative",
    "--block_momentum=1": "flag --block_momentum=1.0: must be a number of at ",
    "--outer_momentum=-1": "flag --outer_momentum=-1.0: must be a number of ",
    "--outer_learning_rate=0": "flag --outer_learning_rate=0.0: must be a pos",
    "--moving_rate=nan": "flag --moving_rate=nan: must be a positive",
    "--easgd_synchronization=softsync": "should be one of <async|sync>",
    "--n_fetch=0": "flag --n_fetch=0: 0 is not a positive integer",
    "--n_push=0.5": "flag --n_push=0.5: invalid literal",
    "--communication=tree": "should be one of <parameter_server|ring>",
    "--warmup_worker_steps=-1": "flag --warmup_worker_steps=-1: -1 is not a ",
    "--joining=later": "should be one of <at_once|one_by_one>",
    "--straggler=1": "must be `worker:seconds` or",
    "--straggler=1:-2": "`seconds` must be a number of at least 0",
    "--straggler=-1:2": "`workers` must be",
    "--straggler=1:0.5": "flag --straggler=1:0.5: must name a worker",
    # Of another strategy than the chosen one.
    "--backup_workers=2": "--backup_workers is for --strategy=backup_workers "
    "only.",
    "--strategy=sync --backup_workers=1": "--backup_workers is for --strategy=",
    "--strategy=softsync --on_drop=retry": "--on_drop is for --strategy=sync "
    "or --strategy=backup_workers only.",
    "--strategy=async --softsync_s=2": "--softsync_s is for --strategy=",
    "--strategy=async --softsync_n=2": "--softsync_n is for --strategy=",
    "--strategy=softsync --max_staleness=2": "--max_staleness is for --strat",
    "--strategy=async --worker_timeout=5": "--worker_timeout is for "
    "--strategy=sync or --strategy=backup_workers or",
    "--strategy=sync --correction=fasgd": "--correction is for "
    "--strategy=async or --strategy=softsync or --strategy=bounded_staleness",
    "--strategy=async --lambda_0=1": "--lambda_0 is for --strategy=dc_asgd or",
    "--strategy=dana --variance_decay=0.9": "--variance_decay is for ",
    "--strategy=dc_asgd --dana_variant=dc": "--dana_variant is for ",
    "--strategy=async --backups=worker": "--backups is for --strategy=dc_asgd",
    "--strategy=dana --lambda_0=1": "--strategy=dana: DANA: lambda_0 is for "
    "variant='dc' only",
    "--strategy=softsync --softsync_s=2 --softsync_n=1": "give one of the two",
    "--strategy=softsync --period=5": "--period is for "
    "--strategy=parameter_averaging or --strategy=bmuf or --strategy=diloco "
    "or --strategy=async_local_sgd or --strategy=easgd only.",
    "--strategy=downpour --period=5": "--period is for ",
    "--strategy=diloco --average_optimizer_state": "--average_optimizer_state "
    "is for --strategy=parameter_averaging only.",
    "--strategy=easgd --warmup_steps=5": "--warmup_steps is for ",
    "--strategy=diloco --block_momentum=0.5": "--block_momentum is for ",
    "--strategy=bmuf --outer_momentum=0.5": "--outer_momentum is for "
    "--strategy=diloco or --strategy=async_local_sgd only.",
    "--strategy=bmuf --outer_learning_rate=1": "--outer_learning_rate is for ",
    "--strategy=bmuf --moving_rate=0.5": "--moving_rate is for ",
    "--strategy=async --easgd_synchronization=sync": "--easgd_synchronization ",
    "--strategy=async --n_fetch=2": "--n_fetch is for --strategy=downpour",
    "--strategy=async --n_push=2": "--n_push is for --strategy=downpour only.",
    "--strategy=downpour --communication=ring": "--communication is for "
    "--strategy=parameter_averaging or --strategy=bmuf or",
    "--strategy=sync --warmup_worker_steps=9": "--warmup_worker_steps is for ",
    "--strategy=async --joining=one_by_one": "--joining is for "
    "--warmup_worker_steps of at least 1 only.",
    # What the strategy refuses.
    "--strategy=easgd --moving_rate=2": "--strategy=easgd: ElasticAveraging: "
    "moving_rate / workers must be less than 1",
    "--strategy=sync --worker_timeout=1": "--strategy=sync: worker_timeout "
    "must be more than two heartbeats",
    "digits": "takes flags only, got ['digits']",
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
print(json.dumps(messages))
"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    table = json.dumps(list(BAD_FLAGS))
    directory = tmp_path_factory.mktemp("messages")
    flags = [SCRIPT.parent, table, directory / "output"]
    status, output = run(directory, PARSE_EACH, flags)
    assert status == 0, output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("argument", BAD_FLAGS)
def test_bad_flag_is_refused_by_name(messages, argument):
    assert BAD_FLAGS[argument] in messages[argument]
