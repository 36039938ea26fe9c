"""Tests that pytest runs."""

def pytest_package(deps):
    """Makes the library "support" of all but tests, and a py_test of each test.

    Args:
      deps: Libraries that "support" needs.
    """
    native.py_library(
        name = "support",
        testonly = True,
        srcs = native.glob(
            ["*.py"],
            exclude = ["*_test.py"],
        ),
        deps = deps,
    )
    pytest_tests(
        srcs = native.glob(["*_test.py"]),
        deps = [":support"],
    )

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
