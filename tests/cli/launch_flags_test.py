"""Every wrong command line is refused by the name of what is wrong."""

import re

import pytest

from tfdist.cli import launch_flags
from tfdist.cli.main import main

# name -> (arguments, parts of the message). SCRIPT stands for a real file,
# DIR for a directory.
WRONG = {
    "no_script": ([], ["SCRIPT is missing", "--module"]),
    "script_absent": (["no.py"], ["SCRIPT", "'no.py'", "does not exist"]),
    "script_directory": (["DIR"], ["SCRIPT must be a file", "a directory"]),
    "num_ps_negative": (
        ["--num_ps=-1", "SCRIPT"],
        ["--num_ps", "at least 0", "--num_ps=-1"],
    ),
    "num_groups": (
        ["--num_groups=0", "SCRIPT"],
        ["--num_groups", "at least 1", "--num_groups=0"],
    ),
    "nobody_trains": (
        ["--num_workers=0", "SCRIPT"],
        ["--num_workers", "at least 1 unless there is a --chief"],
    ),
    "no_servers_evaluator": (
        ["--num_ps=0", "--num_workers=1", "--evaluator", "SCRIPT"],
        ["--num_ps", "--evaluator"],
    ),
    "helpers_negative": (
        ["--helpers_per_worker=-1", "SCRIPT"],
        ["--helpers_per_worker", "at least 0", "-1"],
    ),
    "helpers_no_servers": (
        ["--num_ps=0", "--num_workers=1", "--helpers_per_worker=1", "SCRIPT"],
        ["--helpers_per_worker", "0 without parameter servers"],
    ),
    "helpers_evaluator": (
        ["--evaluator", "--helpers_per_worker=1", "SCRIPT"],
        ["--helpers_per_worker", "with an evaluator"],
    ),
    "helpers_max_workers": (
        ["--max_workers=3", "--helpers_per_worker=1", "SCRIPT"],
        ["--helpers_per_worker", "0 with --max_workers"],
    ),
    "max_restarts": (
        ["--max_restarts=-1", "SCRIPT"],
        ["--max_restarts", "at least 0", "-1"],
    ),
    "num_workers_huge": (
        ["--num_workers=1000000", "SCRIPT"],
        ["at most", "tasks", "Received: 1000001", "--num_workers"],
    ),
    "show": (
        ["--show=worker:2", "SCRIPT"],
        ["--show", "all, chief, or tasks", "--show=worker:2"],
    ),
    "grace_seconds": (
        ["--grace_seconds=-0.5", "SCRIPT"],
        ["--grace_seconds", "at least 0", "-0.5"],
    ),
    "snapshot_seconds": (
        ["--snapshot_seconds=-1", "SCRIPT"],
        ["--snapshot_seconds", "at least 0", "-1"],
    ),
    "terminate_seconds": (
        ["--terminate_seconds=inf", "SCRIPT"],
        ["--terminate_seconds", "at least 0", "inf"],
    ),
    "timeout": (["--timeout=-1", "SCRIPT"], ["--timeout", "at least 0"]),
    "color": (
        ["--color=red", "SCRIPT"],
        ["--color", "auto, always or never", "--color=red"],
    ),
    "env_without_value": (
        ["--env=NAME", "SCRIPT"],
        ["--env", "NAME=VALUE", "--env=NAME"],
    ),
    "env_tf_config": (
        ["--env=TF_CONFIG={}", "SCRIPT"],
        ["--env", "TF_CONFIG", "launcher sets"],
    ),
    "module": (
        ["--module=a/b.py"],
        ["--module", "package.module", "a/b.py"],
    ),
    "log_dir": (
        ["--log_dir=SCRIPT/logs", "SCRIPT"],
        ["--log_dir", "directory", "Not a directory"],
    ),
    "log_dir_without_files": (
        ["--log_dir=/proc", "SCRIPT"],
        ["--log_dir=/proc", "where files can be made"],
    ),
    "unknown_flag": (["--num_worker=2", "SCRIPT"], ["'num_worker'"]),
    "flag_after_script": (
        ["SCRIPT", "--num_ps=2"],
        ["--num_ps after SCRIPT", "before SCRIPT", "-- --num_ps=2"],
    ),
    "argument_before_dashes": (
        ["SCRIPT", "--num_ps=2", "--", "--epochs=1"],
        ["between SCRIPT and `--`", "--num_ps=2"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name, tmp_path, capsys):
    arguments, parts = WRONG[name]
    path = tmp_path / "script.py"
    path.write_text("raise SystemExit('it must not run')")
    arguments = [
        a.replace("SCRIPT", str(path)).replace("DIR", str(tmp_path))
        for a in arguments
    ]
    assert main(["launch", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfdist launch: error: ")
    for part in parts:
        assert part in message


def test_an_unknown_command_lists_what_exists(capsys):
    for argv, received in (([], "no argument"), (["lunch"], "'lunch'")):
        assert main(argv) == 2
        message = capsys.readouterr().err
        assert f"Received: {received}" in message
        assert "launch" in message.split("Commands:")[1]


def test_help_names_every_flag(capsys):
    assert main(["--help"]) == 0
    assert "launch" in capsys.readouterr().out
    assert main(["launch", "--help"]) == 0
    text = capsys.readouterr().out
    flags = launch_flags.define_flags()
    own = flags.flags_by_module_dict()[launch_flags.__name__]
    assert len(own) > 10
    for flag in own:
        assert re.search(rf"--(\[no\])?{flag.name}\b", text)
        assert flag.help.split()[0] in text
