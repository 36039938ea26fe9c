"""Leaves out tests that have passed, for a stage of `make nightly` to go on.

With `--passed_before=FILE`, each test that passes is added to the file at once,
a line for each, and those of the file are not run again.
"""

import pathlib

import pytest

_INPUT = "passed_before"


def pytest_addoption(parser):
    """Adds the option."""
    parser.addoption(
        "--passed_before", help="File of tests that need not run again."
    )


def pytest_configure(config):
    """Reads the file, where tests are handed out: one list for all."""
    path = config.getoption("passed_before")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            _Passed(pathlib.Path(path)), _Passed.__name__
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Hands the list to a process of pytest-xdist."""
    passed = _of(node.config)
    if passed is not None:
        node.workerinput[_INPUT] = passed.before


def pytest_collection_modifyitems(config, items):
    """Leaves out tests of the list."""
    passed = _of(config)
    before = getattr(config, "workerinput", {}).get(_INPUT, ())
    before = {*(before if passed is None else passed.before)}
    left_out = [item for item in items if item.nodeid in before]
    if left_out:
        items[:] = [item for item in items if item.nodeid not in before]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """A run of which nothing is left has passed."""
    passed = _of(session.config)
    nothing = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED
    if nothing and passed is not None and passed.before:
        session.exitstatus = pytest.ExitCode.OK


def _of(config):
    return config.pluginmanager.get_plugin(_Passed.__name__)


class _Passed:
    """The file.

    Args:
        path: its `pathlib.Path`; it need not exist.

    Attributes:
        before: what was in it, a list.
    """

    def __init__(self, path):
        self._path = path
        self.before = (
            path.read_text("utf-8").split("\n") if path.exists() else []
        )
        self._bad = set()

    def pytest_runtest_logreport(self, report):
        """Adds a test after its last phase."""
        if not report.passed:
            self._bad.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._bad:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")
