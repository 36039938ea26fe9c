"""Tests that pytest runs."""

def pytest_tests(srcs, deps = []):
    """Makes a py_test of each file.

    Args:
      srcs: Files of tests, each named *_test.py.
      deps: Libraries beside tfdist, its launcher and the examples.
    """
    for source in srcs:
        native.py_test(
            name = source[:-len(".py")],
            size = "large",
            srcs = [
                source,
                "//tests:pytest_main.py",
            ],
            main = "//tests:pytest_main.py",
            args = ["$(location %s)" % source],
            data = [
                "//:pyproject.toml",
                "//examples:scripts",
            ],
            deps = deps + [
                "//tests:support",
                "//tfdist",
                "//tfdist:launcher",
            ],
        )
