"""A task that runs tests of Keras under a strategy; see `main`.

tfdist launch --module=tests.keras_own.task -- STRATEGY TESTS [NAMES]
"""

import importlib.util
import pathlib
import sys
import types

import keras
from keras.src import testing
import pytest
import tensorflow as tf

from tests.keras_own import exceptions
import tfdist

# A test that takes longer is named.
_SLOW_SECONDS = 20.0

STRATEGIES = {
    "async": tfdist.AsyncStrategy,
    "sync": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync()
    ),
    "local_steps": lambda: tfdist.ParameterAveragingStrategy(period=2),
}


class UnderStrategy:
    """A plugin of pytest: tests of Keras run in the scope of a strategy.

    Args:
        name: of one of `STRATEGIES`.
    """

    def __init__(self, name):
        self._name = name
        strategy = STRATEGIES[name]()
        set_up = testing.TestCase.setUp

        def set_up_in_scope(case):
            set_up(case)
            scope = strategy.scope()
            scope.__enter__()
            case.addCleanup(scope.__exit__, None, None, None)
            # A model that was made without it has trained as in plain Keras.
            case.addCleanup(
                lambda: case.assertIs(tf.distribute.get_strategy(), strategy)
            )

        testing.TestCase.setUp = set_up_in_scope

    def pytest_configure(self, config):
        """Says which marks Keras's own configuration knows."""
        for mark in ("requires_trainable_backend", "multi_device"):
            config.addinivalue_line("markers", mark)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Skips tests for packages that are not there."""
        report = yield
        if report.failed and call.excinfo and _is_missing(call.excinfo.value):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, str(call.excinfo.value))
        return report

    def pytest_runtest_logreport(self, report):
        """Says at once what fails, and what takes long."""
        name = report.nodeid.rpartition("/")[2]
        if report.failed:
            print(f"\nfailed: {name}", flush=True)
            print(report.longrepr, flush=True)
        if report.duration > _SLOW_SECONDS:
            print(f"\n{report.duration:.0f} s: {name}", flush=True)

    def pytest_collectreport(self, report):
        """Says at once what cannot be read."""
        if report.failed:
            print(f"\nfailed: {report.nodeid}", report.longrepr, flush=True)

    def pytest_collection_modifyitems(self, items):
        """Marks the exceptions."""
        for item in items:
            reason = self._reason(exceptions.NOT_RUN, item)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
            reason = self._reason(exceptions.EXCEPTIONS, item)
            if reason:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    def _reason(self, listed, item):
        return exceptions.reason(listed, item.nodeid, self._name)


def _is_missing(error):
    """Whether an error says that a package is not there."""
    return isinstance(error, ImportError) and (
        isinstance(error, ModuleNotFoundError)
        or isinstance(error.__context__, ModuleNotFoundError)
    )


def main(name, tests, names=""):
    """Runs tests, or is the server.

    Args:
        name: of one of `STRATEGIES`.
        tests: folder or file below `keras/src`.
        names: of tests, as in `pytest -k`.

    Returns:
        The exit status of pytest.
    """
    plugin = UnderStrategy(name)
    if importlib.util.find_spec("jax") is None:
        # Some files import it for what they have for its backend.
        sys.modules["jax"] = types.ModuleType("jax")
    # Beside Keras's tests in its repository, and not in its wheel.
    conftest = types.ModuleType("conftest")
    conftest.skip_if_backend = lambda backend, reason: pytest.mark.skipif(
        keras.backend.backend() == backend, reason=reason
    )
    sys.modules.setdefault("conftest", conftest)
    root = pathlib.Path(keras.__file__).parent / "src" / tests
    # Those of data adapters train no model.
    files = [root] if root.is_file() else sorted(root.glob("*_test.py"))
    files += [] if root.is_file() else sorted(root.glob("schedules/*_test.py"))
    flags = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        "--no-summary",
        "--timeout=300",
    ]
    return pytest.main([*flags, "-k", names, *map(str, files)], [plugin])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
