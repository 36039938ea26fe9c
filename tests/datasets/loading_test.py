"""Tests of `tfdist.datasets.load`: many processes, no network, bad names."""

import os
import pathlib
import random
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.multi_process import scripts
from tfdist import datasets

ROOT = pathlib.Path(__file__).parents[2]

# A data set as TFDS's own ones are: its data has to be downloaded.
REMOTE_URL = "http://127.0.0.1:{port}/images.zip"


class RemoteDigits(tfds.core.GeneratorBasedBuilder):
    """Stands for mnist: asks a server on this machine, at `port`."""

    VERSION = tfds.core.Version("1.0.0")
    port = 0

    @classmethod
    def set_port(cls, port):
        url = REMOTE_URL.format(port=port)
        info = tfds.download.checksums.UrlInfo(
            size=1, checksum="0" * 64, filename="images.zip"
        )
        cls.port = port
        cls.url_infos = {url: info}

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict({"label": np.int64}),
        )

    def _split_generators(self, dl_manager):
        dl_manager.download(REMOTE_URL.format(port=self.port))
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"label": 0}


def run_python(code, *arguments, **environment):
    """Starts a Python process that runs `code` in the repository's root."""
    changes = {"PYTHONPATH": ROOT, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **{k: str(v) for k, v in changes.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# All processes are seeded alike, as the workers of a cluster are: TFDS then
# gives its temporary directory the same name in each.
LOAD_TOGETHER = """
import pathlib, random, sys, time
import tensorflow  # The slow import comes first, the race after it.
import tensorflow_datasets
from tfdist import datasets
barrier, data_dir, rank = map(pathlib.Path, sys.argv[1:])
(barrier / rank).touch()
while len(list(barrier.iterdir())) < 4:
    time.sleep(0.001)
random.seed(1)
train, test = datasets.load(
    "digits", split=["train", "test"], data_dir=data_dir
)
labels = [int(label) for _, label in train.concatenate(test)]
print("sum", len(labels), sum(labels))
"""


@pytest.mark.nightly
def test_four_processes_prepare_the_same_data_at_once(tmp_path):
    barrier = tmp_path / "barrier"
    barrier.mkdir()
    data_dir = tmp_path / "data"
    program = tmp_path / "load_together.py"
    program.write_text(LOAD_TOGETHER)
    tasks = [
        scripts.start(tmp_path, program, [barrier, data_dir, rank], str(rank))
        for rank in range(4)
    ]
    statuses = [task.wait(180) for task in tasks]
    outputs = [task.output() for task in tasks]
    # 182 ones, 177 twos, ... of the published class distribution.
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    total = sum(digit * count for digit, count in enumerate(counts))
    for status, output in zip(statuses, outputs, strict=True):
        assert status == 0, output
        assert f"sum 1797 {total}" in output, output
    preparers = [out for out in outputs if "Downloading and preparing" in out]
    assert len(preparers) == 1
    left_behind = {path.name for path in (data_dir / "digits").iterdir()}
    assert left_behind == {"1.0.0", ".1.0.0.lock"}


@pytest.mark.nightly
def test_killed_process_does_not_leave_the_lock_behind(tmp_path):
    holder = run_python(
        "import sys, time\n"
        "from tfdist.datasets import preparation_lock\n"
        "with preparation_lock.preparation_lock(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n",
        tmp_path / "digits" / "1.0.0",
    )
    try:
        assert any(line == "held\n" for line in holder.stdout)
        program = tmp_path / "wait.py"
        program.write_text(
            "import sys\n"
            "from tfdist import datasets\n"
            "datasets.load('digits', data_dir=sys.argv[1])\n"
        )
        waiter = scripts.start(tmp_path, program, [tmp_path])
        waiter.expect("another process to prepare")
    finally:
        holder.kill()
        holder.wait()
    assert waiter.wait(60) == 0, waiter.output()


@pytest.mark.nightly
def test_only_the_data_dir_is_written(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        "import pathlib, sys\n"
        # Keras writes ~/.keras when it is imported.
        "import tensorflow, tensorflow_datasets\n"
        "from tfdist import datasets\n"
        "before = set(pathlib.Path.home().rglob('*'))\n"
        "datasets.load('digits', data_dir=sys.argv[1])\n"
        "print(set(pathlib.Path.home().rglob('*')) - before)\n"
    )
    process = run_python(
        code, tmp_path / "data", HOME=elsewhere, TMPDIR=elsewhere
    )
    output = process.communicate(timeout=60)[0]
    assert output.endswith("\nset()\n"), output


def test_import_stays_light():
    process = run_python(
        "import sys\n"
        "import tfdist.datasets.loading\n"
        "print('tensorflow_datasets' in sys.modules)\n"
    )
    assert process.communicate(timeout=60)[0].endswith("False\n")


def test_preparing_leaves_the_random_state_alone(tmp_path):
    random.seed(7)
    expected = random.random()
    random.seed(7)
    datasets.load("digits", data_dir=tmp_path)
    assert random.random() == expected


def test_unwritable_data_dir_is_named(tmp_path):
    (tmp_path / "digits").write_text("not a directory")
    with pytest.raises(
        datasets.DatasetUnavailableError,
        match=f"'digits' could not be written to {tmp_path}",
    ):
        datasets.load("digits", data_dir=tmp_path)


def test_refused_connection_says_what_needed_the_network(tmp_path):
    with socket.socket() as unused:  # Bound, but nobody listens.
        unused.bind(("127.0.0.1", 0))
        RemoteDigits.set_port(unused.getsockname()[1])
        with pytest.raises(
            datasets.DatasetUnavailableError,
            match="'remote_digits' is not in .* needs the network. Embedded, "
            "and so free of that need: digits",
        ):
            datasets.load("remote_digits", data_dir=tmp_path)


def test_silent_server_is_not_waited_for_for_ever(tmp_path):
    with socket.socket() as silent:  # Accepts connections, answers nothing.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        RemoteDigits.set_port(silent.getsockname()[1])
        with pytest.raises(datasets.DatasetUnavailableError, match="timed out"):
            datasets.load(
                "remote_digits", data_dir=tmp_path, network_timeout=1.0
            )


def test_data_prepared_by_another_process_is_used(tmp_path, monkeypatch):
    """Without a lock the slower process fails in TFDS's rename."""
    faster = datasets.load("digits", split="test", data_dir=tmp_path / "a")
    slower = tfds.builder("digits", data_dir=tmp_path / "b")

    def fail_after_the_other_was_faster(self, **kwargs):
        os.rename(tmp_path / "a/digits/1.0.0", tmp_path / "b/digits/1.0.0")
        raise OSError("Directory not empty")

    monkeypatch.setattr(
        type(slower), "download_and_prepare", fail_after_the_other_was_faster
    )
    dataset = datasets.load("digits", split="test", data_dir=tmp_path / "b")
    assert len(dataset) == len(faster)


@pytest.mark.parametrize("name", ["digit", "no_such_set", "no_such:1.0.0"])
def test_unknown_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=f"(?s)digits.*name='{name}'"):
        datasets.load(name, data_dir=tmp_path)


def test_network_timeout_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="network_timeout=0"):
        datasets.load("digits", data_dir=tmp_path, network_timeout=0)


def test_download_false_refuses_to_prepare(tmp_path):
    with pytest.raises(AssertionError, match="download_and_prepare"):
        datasets.load("digits", data_dir=tmp_path, download=False)
