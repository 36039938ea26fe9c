"""What the doctor says without any server; see also tests/multi_process."""

import dataclasses
import json
import re
import socket
import subprocess
import sys
import threading

import pytest

from tfdist.cli import connectivity
from tfdist.cli import diagnosis
from tfdist.cli import doctor
from tfdist.cli import main
from tfdist.cluster import versions


@dataclasses.dataclass
class Measured:
    """Like `tfdist.cluster.probe.ProbeResult`, without TensorFlow."""

    versions: dict = dataclasses.field(default_factory=lambda: {"tfdist": "1"})
    clock_seconds: float = 0.0
    round_trip_seconds: float = 0.25
    bytes_to: float = 1e6
    bytes_from: float = 2e6


@pytest.fixture
def closed():
    """An address at which nothing listens, nor anything else will."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*holder.getsockname())


def test_addresses_of_a_name_share_the_time(monkeypatch):
    """All silent, they would else take longer than the doctor waits."""
    found = [(2, 1, 6, "", (f"192.0.2.{k}", 1)) for k in range(4)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    seconds = []

    def connect(family, kind, where, timeout):
        seconds.append(timeout)
        return connectivity.Port.SILENT, "no answer"

    monkeypatch.setattr(connectivity, "_connect", connect)
    monkeypatch.setattr(connectivity, "_is_here", lambda *_: False)
    assert connectivity.reach("name:1", 2.0).ip == "192.0.2.0"
    assert seconds == [0.5] * 4


def test_a_cluster_of_which_nothing_runs(closed, tmp_path, monkeypatch, capsys):
    cluster = {"ps": [closed], "worker": ["no.such.host.invalid:1", "[::1]:1"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", text)
    path = tmp_path / "figures.json"
    assert doctor.main([f"--json={path}", "--timeout=30"]) == 1
    shown = capsys.readouterr().out
    figures = json.loads(path.read_text())
    # This machine's own server has not begun; a worker need not have.
    (wrong,) = figures["wrong"]
    assert wrong.startswith("worker 0 at no.such.host.invalid:1: its name d")
    assert wrong in shown
    ports = [task["port"] for task in figures["tasks"]]
    assert ports[:2] == ["closed", "unknown"]
    assert re.search(rf"ps 0 \(this one\) +{closed} +127.0.0.1 +not yet", shown)

    # Seen from outside, a server that is not there is wrong.
    given = json.dumps({"cluster": {"ps": [closed], "worker": ["[::1]:1"]}})
    file = tmp_path / "job.json"
    file.write_text(given)
    for value in (given, str(file)):
        assert doctor.main([f"--tf_config={value}", "--json=-"]) == 1
        (wrong, *_) = json.loads(capsys.readouterr().out)["wrong"]
        assert f"ps 0 at {closed}: nothing listens there. Start" in wrong


@pytest.mark.parametrize("task", [{"task": {"type": "ps", "index": 0}}, {}])
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"cluster": {"evaluator": ["d:1"]}},
        {"cluster": {"worker": ["b:1", "e:1"]}},
        {"initial_workers": 2},
    ],
    ids=json.dumps,
)
def test_a_server_that_a_run_would_refuse_is_of_another_cluster(task, other):
    content = {
        "cluster": {"ps": ["a:1"], "worker": ["b:1", "c:1"]},
        "initial_workers": 1,
        **task,
    }
    config, has_task = doctor._read(json.dumps(content))
    assert has_task == bool(task)
    cluster = content["cluster"] | other.get("cluster", {})
    server, _ = doctor._read(json.dumps(content | other | {"cluster": cluster}))
    told = versions.own() | versions.told_of(server)

    class Probe:
        ProbeError = OSError

        @staticmethod
        def measure(*_, **__):
            return Measured(versions=told)

    opened = connectivity.Reach("1.2.3.4", connectivity.Port.OPEN)
    row = diagnosis.TaskDiagnosis("ps", 0, "a:1", reach=opened)
    values = doctor.define_flags()
    values(["tfdist"])
    doctor._measure(row, config, Probe, versions, values)
    wrong, _ = diagnosis.findings([row], 1.0)
    assert row.is_other_cluster == bool(wrong) == bool(other)
    assert all('another TF_CONFIG["cluster"]' in text for text in wrong)


def test_tensorflow_is_not_imported_for_nothing(closed):
    given = json.dumps({"cluster": {"worker": [closed]}})
    code = (
        "import sys; from tfdist.cli import main; "
        f"print(main.main(['doctor', '--tf_config={given}']), "
        "'tensorflow' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    # A worker that has not begun is nothing wrong.
    assert run.stdout.endswith("\n0 False\n"), run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout=0"], "Flag --timeout must be above 0"),
        (["--bandwidth_mb=2000"], "--bandwidth_mb must be at most 1000"),
        (["job.json"], "There must be flags alone. Received: job.json"),
        (["--json=."], "--json must be a file in a directory that exists"),
        (["--tf_config=none.json"], "--tf_config=none.json: No such file"),
        (["--tf_config={}"], "There is no cluster to check: set TF_CONFIG"),
        (['--tf_config={"cluster": {"ps": ["a:1"]}}'], "at least one task in"),
        (
            ['--tf_config={"cluster": {"worker": ["a"]}}'],
            r"TF_CONFIG\[\"cluster\"\]\[\"worker\"\]\[0\] must be 'host:port'",
        ),
        (
            [
                '--tf_config={"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, '
                '"initial_workers": 2}'
            ],
            r"TF_CONFIG\[\"initial_workers\"\] must be .* from 1 to 1",
        ),
        (
            [
                '--tf_config={"cluster": {"worker": ["a:1"]}}',
                "--serve_seconds=1",
            ],
            r"--serve_seconds needs TF_CONFIG\[\"task\"\]",
        ),
    ],
)
def test_bad_usage(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main.main(["doctor", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.nightly
def test_who_hangs_is_left_behind():
    go = threading.Event()

    def fail():
        raise ValueError("no")

    # Who hangs does so for longer than a test may take.
    calls = [lambda: 1, lambda: go.wait(600), fail, lambda: 2]
    results = connectivity.within(5.0, calls, "late")
    go.set()
    assert results[:2] == [1, "late"] and results[3] == 2
    assert isinstance(results[2], ValueError)


def judged(job="worker", *, max_clock_seconds=1.0, **values):
    row = diagnosis.TaskDiagnosis(job, 0, "h:1", **values)
    return diagnosis.findings([row], max_clock_seconds)


def test_ports_that_do_not_answer_are_wrong_for_everybody():
    for port in (connectivity.Port.SILENT, connectivity.Port.UNREACHABLE):
        wrong, _ = judged(reach=connectivity.Reach("1.2.3.4", port, error="so"))
        assert wrong[0].startswith("worker 0 at h:1: so. Is the machine up")
    here = connectivity.Reach("1.2.3.4", connectivity.Port.CLOSED)
    wrong, (note,) = judged("ps", is_own=True, reach=here)
    assert not wrong and "1.2.3.4 is not an address of this machine" in note


def test_a_clock_is_judged_by_what_is_certain():
    opened = connectivity.Reach("1.2.3.4", connectivity.Port.OPEN)
    # Within half a round trip, 0.125 s, nobody knows.
    for seconds, is_wrong in ((1.12, False), (-1.12, False), (1.13, True)):
        measured = Measured(clock_seconds=seconds)
        wrong, _ = judged(reach=opened, measured=measured)
        assert bool(wrong) == is_wrong, seconds
    wrong, _ = judged(reach=opened, measured=Measured(clock_seconds=-3.0))
    assert "its clock is 3 s behind the one here" in wrong[0]


def test_versions_that_are_not_told_are_wrong_of_servers_alone():
    opened = connectivity.Reach("1.2.3.4", connectivity.Port.OPEN)
    for job, is_wrong in (("ps", True), ("worker", False)):
        wrong, notes = judged(job, reach=opened, measured=Measured({}))
        said = wrong if is_wrong else notes
        assert "does not say which versions it runs" in said[0]
        assert len(wrong) + len(notes) == 1


def test_the_table_has_a_line_for_each_task():
    opened = connectivity.Reach("1.2.3.4", connectivity.Port.OPEN)
    rows = [
        diagnosis.TaskDiagnosis(
            "ps", 0, "a:1", reach=opened, measured=Measured()
        ),
        diagnosis.TaskDiagnosis("worker", 10, "b:1"),
    ]
    lines = diagnosis.table(rows).splitlines()
    words = " ".join(lines[1].split())
    assert words == "ps 0 a:1 1.2.3.4 open the same +0.0 ms 250.00 ms 1 2"
    assert " ".join(lines[2].split()) == "worker 10 b:1 - - - - - - -"
    assert lines[0].index("IP") == lines[1].index("1.2.3.4")
