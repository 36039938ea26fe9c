"""The examples whose groups teach each other."""

import itertools
import json
import math

import pytest

from tests.examples import codistillation_task
from tests.multi_process import scripts
from tests.multi_process.real_cluster import TaskUnderTest
from tests.multi_process.real_cluster import shared_zygote
from tfdist import datasets

pytestmark = pytest.mark.nightly

LANGUAGE, IMAGES = "codistill_language_model", "train_image_classifier"
SECONDS = 120.0
# 20,000 characters are 416 sequences of 48, 208 for each of two groups: 13
# batches of 16. Steps sleep, so that both groups train at the same time even
# if one began seconds later.
SMALL = [
    "--characters=20000",
    "--units=8",
    "--batch_size=16",
    "--burn_in_steps=3",
    "--exchange_every=4",
    "--distillation_weight=0.5",
]
# Of 64 characters, each as probable as the others.
NATS_UNTRAINED = math.log(64)


def run(directory, name, flags, jobs):
    """Runs an example as each task of two groups; returns what they print."""
    script = codistillation_task.EXAMPLES / f"{name}.py"
    flags = [f"--output_dir={directory}", *flags]
    return scripts.run(directory, script, flags, jobs, 2, SECONDS)


def ask(directory, question, environ, **arguments):
    """Asks an example something in a process of its own."""
    task = TaskUnderTest(
        shared_zygote(),
        "task",
        directory,
        target=f"tests.examples.codistillation_task:{question}",
        arguments=arguments,
        environ=environ,
    )
    assert task.wait(SECONDS) == 0, task.output()


def summaries(directory, outputs):
    """What each of two groups wrote."""
    paths = [directory / f"group-{k}" / "summary.json" for k in range(2)]
    assert all(path.exists() for path in paths), outputs
    return [json.loads(path.read_text()) for path in paths]


def assert_taught(summaries, **flags):
    """Asserts that groups were taught by each other."""
    received = [
        _received(summary, group, **flags)
        for group, summary in enumerate(summaries)
    ]
    # One may be done before the other one has begun to teach, not both.
    assert any(received)


def _received(summary, group, **flags):
    """Checks what a group says of its teacher; whether it received any."""
    found = summary["codistillation"]
    assert (found["group"], found["num_groups"]) == (group, 2)
    assert {name: found[name] for name in flags} == flags
    # Of itself it is no peer.
    ((number, peer),) = found["peers"].items()
    assert number == str(1 - group)
    # Groups begin differently.
    assert summary["seed"] == 1 + group
    if not peer["received"]:
        return False
    assert peer["skipped"] == 0
    # Nobody teaches before the end of its own burn-in.
    assert peer["step"] >= found["burn_in_steps"]
    assert 0 <= peer["age_seconds"] < SECONDS
    return True


def test_groups_exchange_whole_models(tmp_path):
    # What an earlier run has left, of the wrong group at that.
    stale = tmp_path / "exchange/group-1/checkpoint-00000009-step-9.keras"
    kept = stale.with_name("notes.txt")
    stale.parent.mkdir(parents=True)
    stale.touch()
    kept.touch()
    flags = [*SMALL, "--different_architectures", "--epochs=3"]
    flags += ["--straggler=0:0.15"]
    outputs = run(tmp_path, LANGUAGE, flags, {"worker": 1})
    found = summaries(tmp_path, outputs)
    assert_taught(found, exchange="directory")
    for group, summary in enumerate(found):
        assert summary["layer"] == ["GRU", "LSTM"][group]
        assert summary["sequences"] == 208
        assert summary["updates_applied"] == 3 * 13
        nats = summary["nats_per_character"]
        assert nats < NATS_UNTRAINED
        assert summary["nats_per_character_by_epoch"][-1] == nats
        assert summary["bits_per_character"] == pytest.approx(
            nats / math.log(2)
        )
        assert (
            f"{nats:.3f} nats ({nats / math.log(2):.3f} bits) per character"
        ) in outputs[f"group-{group}-worker-0"]
    assert kept.exists() and not stale.exists()
    for group in range(2):
        files = list((tmp_path / f"exchange/group-{group}").glob("*.keras"))
        assert 0 < len(files) <= 3


def test_parts_of_the_text_are_disjoint_and_together_the_whole(tmp_path):
    ask(tmp_path, "deal", {"TF_CONFIG": ""}, num_groups=3)
    (whole, validation), *parts = json.loads(
        (tmp_path / "parts.json").read_text()
    )
    assert len(whole) == 5000 // 48
    # Dealt out in turn.
    trained = [train for train, _ in parts]
    woven = [
        sequence
        for dealt in itertools.zip_longest(*trained)
        for sequence in dealt
        if sequence is not None
    ]
    assert woven == whole
    # The next sequence begins with what the one before has to predict last.
    for one, following in itertools.pairwise(whole):
        assert len(one) == 48 + 1 and one[-1] == following[0]
    assert all(other == validation for _, other in parts)
    assert len(validation) > 400


GROUP = '{"codistillation": {"group": 1, "num_groups": 2}}'
BAD_GROUP = '{"codistillation": {"group": 2, "num_groups": 2}}'
BAD_FLAGS = {
    LANGUAGE: {
        ("", "--exchange=disk"): "should be one of <directory|servers>",
        ("", "--exchange_every=0"): "0 is not a positive integer",
        ("", "--burn_in_steps=-1"): "-1 is not a non-negative integer",
        ("", "--distillation_weight=-1"): "must be a finite number of at least",
        ("", "--distillation_weight=nan"): "must be a finite number of at leas",
        ("", "--temperature=0"): "--temperature=0.0: must be a positive, fini",
        ("", "--temperature=inf"): "--temperature=inf: must be a positive, fin",
        ("", "--quantise=int4"): "should be one of <float32|float16|int8>",
        ("", "--exchange=servers --exchange_dir=here"): "--exchange_dir is for "
        "--exchange=directory only.",
        ("", "--different_architectures --quantise=int8"): "is for "
        "--exchange=directory --quantise=float32 only: whole models are",
        ("", "--different_architectures --exchange=servers"): "is for "
        "--exchange=directory --quantise=float32 only: whole models are",
        ("", "--characters=0"): "0 is not a positive integer",
        ("", "--learning_rate=0"): "must be a positive, finite number",
        ("", "text"): "must be flags. Received: ['text']",
        ("", f"--output_dir={__file__}"): "must be a directory, or the path",
        (GROUP, "--exchange=servers"): "flag --exchange=servers: every group "
        "must have parameter servers, such as tfdist launch --num_groups=2",
        (GROUP, "--characters=95"): "flag --characters=95: must be at least "
        "96, a sequence for each group.",
        (BAD_GROUP, ""): 'TF_CONFIG["codistillation"]["group"] must be an '
        "integer from 0 to 1. Received: 2",
    },
    IMAGES: {
        ("", "--codistill"): "flag --codistill: TF_CONFIG must say under "
        '"codistillation" which of several groups this is, as it does under '
        "`tfdist launch --num_groups=2 --num_ps=0 --num_workers=1 SCRIPT -- "
        "--codistill`.",
        (GROUP, "--strategy=none"): "This is group 1 of 2, and without "
        "--codistill all would train the same",
        (GROUP, "--codistill --exchange=servers"): "flag --exchange=servers: ",
        (BAD_GROUP, "--codistill"): 'TF_CONFIG["codistillation"]["group"] must',
        ("", "--exchange_every=5"): "--exchange_every is for --codistill only.",
        ("", "--exchange_dir=here"): "--exchange_dir is for --codistill only.",
        (GROUP, "--codistill --temperature=-1"): "must be a positive, finite",
    },
}


@pytest.mark.parametrize("script", BAD_FLAGS)
def test_bad_flags_are_refused_by_name(tmp_path, script):
    cases = BAD_FLAGS[script]
    ask(
        tmp_path,
        "refuse",
        {},
        script=script,
        cases=[
            (tf_config, f"--output_dir={tmp_path} {flags}")
            for tf_config, flags in cases
        ],
    )
    messages = json.loads((tmp_path / "messages.json").read_text())
    for (case, expected), message in zip(cases.items(), messages, strict=True):
        assert expected in message, case


@pytest.mark.nightly
def test_groups_train_on_images(tmp_path):
    data_dir = tmp_path / "tensorflow_datasets"
    datasets.load("digits", data_dir=data_dir)
    flags = [
        "--codistill",
        f"--data_dir={data_dir}",
        f"--exchange_dir={tmp_path / 'elsewhere'}",
        "--batch_size=64",
        "--epochs=3",
        "--burn_in_steps=3",
        "--exchange_every=5",
        "--quantise=int8",
        "--straggler=0:0.15",
    ]
    outputs = run(tmp_path, IMAGES, flags, {"worker": 1})
    found = summaries(tmp_path, outputs)
    directory = str(tmp_path / "elsewhere")
    assert_taught(found, quantise="int8", exchange_dir=directory)
    for group, summary in enumerate(found):
        # Half of 1,437 - 144 images are 11 batches of 64.
        assert summary["updates_applied"] == 3 * 11
        assert 0.2 < summary["test_accuracy"] <= 1
        assert (tmp_path / f"group-{group}" / "training.png").exists()
        assert list(tmp_path.glob(f"elsewhere/group-{group}/*.npz"))
    assert not (tmp_path / "summary.json").exists()
    assert not (tmp_path / "exchange").exists()
