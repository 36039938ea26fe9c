"""Rules that keep the clock and the load of a machine out of `make test`.

They are read off the syntax trees of the test files. A test that needs to break
one is for `make nightly`: mark it `nightly`.
"""

import ast
import functools
import pathlib
import re

TESTS = pathlib.Path(__file__).parents[1]
LOADS = re.compile(
    r"\b(process_time|cpu_times|cpu_percent|getrusage|ru_maxrss|memory_info|"
    r"VmRSS|VmHWM)\b"
)
# What starts the processes of a cluster.
CLUSTERS = {"ClusterUnderTest", "Launched", "scripts.run", "zygote"}
BOUNDS = re.compile(r"(?:timeout|lost_after|lease|leave_seconds)$")
# Of less than a minute.
SLEEP = re.compile(r"time\.sleep\([0-5]?\d(\.\d+)?\)")
LEARNT = re.compile(r"\b(accuracy|auc|loss(es)?)\b")
LEAST_SECONDS = 60


def marks_of(nodes):
    """Names of the marks in decorators, or in the value of `pytestmark`."""
    text = " ".join(ast.unparse(node) for node in nodes)
    return set(re.findall(r"pytest\.mark\.(\w+)", text))


class File:
    """A file of tests.

    Attributes:
        path: relative to `tests/`.
        tree: its syntax tree.
        gate: tests of `make test`, and what they use of this file: by name,
            (node, whether it is of smokes alone).
    """

    def __init__(self, path):
        self.path = path.relative_to(TESTS)
        self.tree = ast.parse(path.read_text("utf-8"))
        self.known = {
            node.name: node
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        whole = marks_of(
            node.value
            for node in self.tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "pytestmark"
        )
        self.gate = {}
        for name, node in self.known.items():
            if name.startswith("test_"):
                # Marks of single cases are within `parametrize`.
                own = {
                    mark
                    for mark in marks_of(node.decorator_list)
                    if f"pytest.mark.{mark}"
                    in {ast.unparse(d) for d in node.decorator_list}
                }
                if "nightly" not in own | whole:
                    self._reach(name, "smoke" in own | whole)

    def _reach(self, name, smoke):
        node, known_smoke = self.gate.get(name, (None, True))
        if node is not None and known_smoke <= smoke:
            return
        self.gate[name] = (self.known[name], smoke)
        for used in names_in(self.known[name]) & self.known.keys():
            self._reach(used, smoke)


def names_in(node):
    """All names that a node uses, fixtures in arguments among them."""
    return {
        ast.unparse(n)
        for n in ast.walk(node)
        if isinstance(n, ast.Name | ast.Attribute)
    } | arguments_of(node)


def arguments_of(node):
    """Names of the arguments of a function, which are fixtures."""
    return {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}


@functools.cache
def files():
    return [File(path) for path in sorted(TESTS.rglob("*_test.py"))]


def gate(smokes=None):
    """Of tests of `make test`: place, and node."""
    for file in files():
        for node, smoke in file.gate.values():
            if smokes is None or smoke == smokes:
                yield f"{file.path}::{node.name}", node


def is_elapsed(node):
    """Whether a node is a reading of a clock minus something."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and re.fullmatch(
            r"time\.(time|monotonic|perf_counter)\(\)", ast.unparse(node.left)
        )
    )


def compares_elapsed(function):
    """Whether a function compares a time that something took."""
    elapsed = {
        ast.unparse(part.targets[0])
        for part in ast.walk(function)
        if isinstance(part, ast.Assign) and is_elapsed(part.value)
    }
    return any(
        is_elapsed(part) or isinstance(part, ast.Name) and part.id in elapsed
        for compared in ast.walk(function)
        if isinstance(compared, ast.Compare)
        for part in ast.walk(compared)
    )


def fixtures_of(directory):
    """Names that the `conftest.py` of a directory defines or imports."""
    path = directory / "conftest.py"
    if not path.exists():
        return set()
    return {
        name
        for node in ast.parse(path.read_text("utf-8")).body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [getattr(node, "name", None)]
        )
    }


def test_rules_see_tests():
    """The rules below would pass if nothing were read."""
    assert len(list(gate(smokes=False))) > 1000
    assert len(list(gate(smokes=True))) > 10


def test_no_test_asserts_elapsed_time():
    """A bound of a wait is `end = time.monotonic() + seconds`."""
    assert {p for p, node in gate() if compares_elapsed(node)} == set()


def test_no_test_asserts_processor_time_or_memory():
    found = {p for p, node in gate() if LOADS.search(ast.unparse(node))}
    assert found == set()


def test_no_test_sleeps_but_in_a_loop():
    """Polling is a loop with a bound, a minute stands still, else a hope."""
    found = set()
    for place, node in gate():
        polls = {
            id(part)
            for loop in ast.walk(node)
            if isinstance(loop, ast.While)
            for part in ast.walk(loop)
        }
        found |= {
            place
            for part in ast.walk(node)
            if isinstance(part, ast.Call)
            and re.fullmatch(
                r"time\.sleep\([0-5]?\d(\.\d+)?\)", ast.unparse(part)
            )
            and id(part) not in polls
        }
    assert found == set()


def test_clusters_are_started_by_smokes_alone():
    found = set()
    for file in files():
        fixtures = fixtures_of(TESTS / file.path.parent) & {"cluster"}
        found |= {
            f"{file.path}::{node.name}"
            for node, smoke in file.gate.values()
            if not smoke
            and (names_in(node) & CLUSTERS or arguments_of(node) & fixtures)
        }
    assert found == set()


def test_smokes_are_patient():
    """No timeout of the product below a minute: a busy machine is healthy."""
    found = set()
    for place, node in gate(smokes=True):
        for part in ast.walk(node):
            if isinstance(part, ast.keyword) and BOUNDS.search(part.arg or ""):
                value = part.value
            elif isinstance(part, ast.Constant) and (
                flag := re.fullmatch(r"--(\w+)=([0-9.]+)", str(part.value))
            ):
                if not BOUNDS.search(flag[1]):
                    continue
                value = ast.Constant(float(flag[2]))
            else:
                continue
            if isinstance(value, ast.Constant) and value.value is not None:
                if value.value < LEAST_SECONDS:
                    found.add(place)
    assert found == set()


def test_smokes_do_not_ask_how_well_a_model_has_learnt():
    """Unordered updates make a model as good as the machine is idle."""
    found = {
        place
        for place, node in gate(smokes=True)
        for part in ast.walk(node)
        if isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        and LEARNT.search(ast.unparse(part))
    }
    assert found == set()


def test_examples_of_hypothesis_are_those_of_the_profile():
    """`tests.laws.settings` keeps them; `make nightly` tries more."""
    found = {
        str(file.path)
        for file in files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call)
        and re.fullmatch(r"(hypothesis\.)?settings", ast.unparse(node.func))
    }
    assert found == set()
