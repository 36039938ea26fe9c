"""The BUILD files describe what is there.

BUILD files are in Starlark, of which the part that ours use is Python too. So
they are read here with stand-ins for Bazel's rules.
"""

import ast
import collections
import itertools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOPS = ("tfdist", "tests", "examples", "benchmarks")
pytestmark = pytest.mark.skipif(
    not (ROOT / "BUILD").exists(), reason="Bazel does not show BUILD to tests."
)


def python_files():
    """All files of Python, relative to the root."""
    found = itertools.chain(
        ROOT.glob("*.py"), *(ROOT.joinpath(top).rglob("*.py") for top in TOPS)
    )
    return sorted(path.relative_to(ROOT) for path in found)


class Package:
    """What one BUILD file says.

    Attributes:
        targets: name -> (rule, attributes).
    """

    def __init__(self, directory):
        self.directory = directory
        self.targets = {}
        names = ("py_library", "py_binary", "py_test", "filegroup")
        environment = {name: self._rule(name) for name in names}
        environment.update(
            glob=self._glob,
            load=lambda file, *symbols: None,
            pytest_package=self._pytest_package,
            pytest_tests=self._pytest_tests,
            package=lambda **kwargs: None,
            licenses=lambda kinds: None,
            exports_files=lambda files: None,
        )
        text = (ROOT / directory / "BUILD").read_text()
        exec(compile(text, str(directory / "BUILD"), "exec"), environment)

    def _rule(self, rule):
        def declare(name, **attributes):
            assert name not in self.targets, f"{self.label(name)} twice"
            self.targets[name] = (rule, attributes)

        return declare

    def _pytest_package(self, deps):
        support = self._glob(["*.py"], exclude=["*_test.py"])
        self._rule("py_library")("support", srcs=support, deps=deps)
        self._pytest_tests(self._glob(["*_test.py"]), deps=[":support"])

    def _pytest_tests(self, srcs, deps=()):
        for source in srcs:
            self._rule("py_test")(
                source.removesuffix(".py"),
                srcs=[source],
                deps=[
                    *deps,
                    "//tests:support",
                    "//tfdist",
                    "//tfdist:launcher",
                ],
            )

    def _glob(self, patterns, exclude=()):
        directory = ROOT / self.directory
        found, excluded = (
            {path.name for p in some for path in directory.glob(p)}
            for some in (patterns, exclude)
        )
        return sorted(found - excluded)

    def label(self, name):
        """The full name of a target or file that is called `name` here."""
        if name.startswith("//"):
            package, colon, target = name.partition(":")
            return name if colon else f"{name}:{package.rsplit('/', 1)[-1]}"
        directory = "" if self.directory == pathlib.Path() else self.directory
        return f"//{directory}:{name.removeprefix(':')}"


@pytest.fixture(scope="module")
def packages():
    return [
        Package(path.parent.relative_to(ROOT))
        for path in [
            ROOT / "BUILD",
            *itertools.chain(*(ROOT.joinpath(t).rglob("BUILD") for t in TOPS)),
        ]
    ]


def test_every_directory_with_sources_has_a_build_file():
    directories = {path.parent for path in python_files()}
    missing = [str(d) for d in directories if not (ROOT / d / "BUILD").exists()]
    assert not missing, "copy the BUILD file of a neighbour"


def test_every_source_is_in_exactly_one_target(packages):
    owners = collections.defaultdict(list)
    for package in packages:
        for name, (rule, attributes) in package.targets.items():
            if rule != "filegroup":
                for source in attributes.get("srcs", ()):
                    owners[package.label(source)].append(package.label(name))
    expected = {
        f"//{'' if path.parent == pathlib.Path() else path.parent}:{path.name}"
        for path in python_files()
    }
    assert owners.keys() == expected
    assert {k: v for k, v in owners.items() if len(v) != 1} == {}


def test_all_that_targets_need_is_there(packages):
    targets = {p.label(name) for p in packages for name in p.targets}
    for package in packages:
        for name, (_, attributes) in package.targets.items():
            needed = {package.label(d) for d in attributes.get("deps", ())}
            assert needed <= targets, package.label(name)


def imported_by(path):
    """Files of `tfdist` that one file imports, by import statements."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        top = pathlib.Path(*node.module.split("."))
        if top.parts[0] != "tfdist":
            continue
        for alias in node.names:
            module = top / f"{alias.name}.py"
            yield (
                module
                if (ROOT / module).exists()
                else next(
                    found
                    for found in (
                        top / alias.name / "__init__.py",
                        top.with_suffix(".py"),
                        top / "__init__.py",
                    )
                    if (ROOT / found).exists()
                )
            )


def test_libraries_need_what_their_files_import(packages):
    owners, missing = {}, set()
    libraries = [
        (package, package.label(name), attributes)
        for package in packages
        for name, (rule, attributes) in package.targets.items()
        if rule == "py_library" and package.directory.parts[:1] == ("tfdist",)
    ]
    for package, label, attributes in libraries:
        for source in attributes.get("srcs", ()):
            owners[package.directory / source] = label
    for package, label, attributes in libraries:
        known = {package.label(d) for d in attributes.get("deps", ())} | {label}
        for source in attributes.get("srcs", ()):
            for path in imported_by(package.directory / source):
                if owners[path] not in known:
                    missing.add((label, owners[path]))
    assert not missing


def test_tests_are_tests_and_nothing_else_is(packages):
    for package in packages:
        for name, (rule, attributes) in package.targets.items():
            if rule == "py_test":
                assert package.directory.parts[0] == "tests"
                text = (ROOT / package.directory / f"{name}.py").read_text()
                assert "\ndef test_" in text or "\nclass Test" in text
            elif rule != "filegroup":
                for source in attributes.get("srcs", ()):
                    text = (ROOT / package.directory / source).read_text()
                    assert "\ndef test_" not in text, package.label(source)
