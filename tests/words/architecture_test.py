"""The rooms of `tfdist`, and who may import whom."""

import ast
import dataclasses
import functools
import itertools
import pathlib
import re

import pytest
import tensorflow as tf

from tfdist.runtime import runtime

ROOT = pathlib.Path(__file__).parents[2]

# Bottom up: a room imports from those before it.
ROOMS = (
    "variables",
    "exchange",
    "coordination",
    "corrections",
    "replicas",
    "recovery",
    "local_steps",
    "checkpoint",
    "keras_hooks",
)
RUNTIME = "tfdist.runtime"
# By part, what nobody asks for where the axis is not used.
UNUSED = {
    "marks": {"leave"},
    "corrector": {"forget"},
    # A `LocalStep` does, and only a `Local` makes one.
    "local": {
        "after_step",
        "assigned_within",
        "before_step",
        "check_eager",
        "needs_gradients",
        "needs_points",
        "own_values_kept",
        "show_own",
    },
    "gradient_counts": {"applied", "read"},
    "coordination": set(),
    "recovery": {"config", "leave_manifest", "on_first_lost"},
    "chief_decisions": {"others_have_later_call"},
}


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports():
    """Module -> the modules that it imports, of those of `tfdist`."""
    paths = sorted(ROOT.joinpath("tfdist").rglob("*.py"))
    modules = {name_of(path): path for path in paths}
    found = {}
    for module, path in modules.items():
        found[module] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{a.name}" for a in node.names}
                names = {n if n in modules else node.module for n in names}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            else:
                continue
            found[module] |= names & modules.keys()
    return found


def level_of(module):
    """Number of the room of a module of the runtime, above all its own top."""
    room = module.removeprefix(f"{RUNTIME}.").split(".")[0]
    return ROOMS.index(room) if room in ROOMS else len(ROOMS)


def arrows():
    return [(a, b) for a, targets in imports().items() for b in sorted(targets)]


def test_every_room_is_known():
    rooms = {p.parent.name for p in ROOT.glob("tfdist/runtime/*/__init__.py")}
    assert rooms == set(ROOMS)


def test_nothing_in_the_runtime_imports_upward():
    upward = [
        f"{source} imports {target}"
        for source, target in arrows()
        if source.startswith(f"{RUNTIME}.")
        and (
            target.startswith("tfdist.strategies")
            or target.startswith(f"{RUNTIME}.")
            and level_of(target) > level_of(source)
        )
    ]
    assert upward == []


@pytest.mark.parametrize("depth", [2, 3])
def test_there_are_no_circles(depth):
    """Of packages: those of `tfdist`, and the rooms within them."""
    after = {}
    for source, target in arrows():
        ends = [".".join(m.split(".")[:depth]) for m in (source, target)]
        if "tfdist" not in ends and ends[0] != ends[1]:
            after.setdefault(ends[0], set()).add(ends[1])
    while leaves := {
        n for n in itertools.chain(*after.values()) if n not in after
    }:
        after = {n: left for n, t in after.items() if (left := t - leaves)}
    assert after == {}


def test_nobody_sets_attributes_of_a_runtime_from_outside():
    found = []
    for path in sorted(ROOT.joinpath("tfdist").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno}"
                for target in targets
                if isinstance(target, ast.Attribute)
                and ast.unparse(target.value).split(".")[-1]
                in ("store", "_store", "runtime", "_runtime")
            ]
    assert found == []


@functools.cache
def runtime_of_defaults():
    """A `Runtime` that uses no axis."""
    device = tf.config.list_logical_devices("CPU")[0].name
    return runtime.Runtime(
        namespace="architecture_test",
        devices=[device],
        worker_device=device,
        worker_id=0,
        is_chief=True,
        timeout=10.0,
    )


def names_of(made):
    """What an object has in public."""
    return {name for name in dir(made) if not name.startswith("_")}


def places_of(pattern):
    """Where a regular expression matches in the package: file and text."""
    return [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted(ROOT.joinpath("tfdist").rglob("*.py"))
        for match in re.finditer(pattern, path.read_text())
    ]


def test_a_store_is_asked_for_no_part():
    """A `store` is a `ParameterStore`; who has the parts is a `runtime`."""
    made = runtime_of_defaults()
    parts = "|".join(sorted(names_of(made) - names_of(made.store)))
    assert places_of(rf"\b_?store\.({parts})\b") == []


def parts_used_by(kind):
    """What a class uses of its `Runtime`; None if it hands that on.

    Args:
      kind: An `ast.ClassDef`.
    """

    def is_runtime(node):
        return ast.unparse(node) in ("runtime", "self._runtime")

    used = set()
    for node in ast.walk(kind):
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(map(is_runtime, given)):
                return None
        if isinstance(node, ast.Attribute) and is_runtime(node.value):
            used.add(node.attr)
    return used - {"store"}


def test_who_needs_few_parts_is_handed_these():
    found = {}
    for path in sorted(ROOT.joinpath("tfdist", "runtime").rglob("*.py")):
        for kind in ast.walk(ast.parse(path.read_text())):
            if not isinstance(kind, ast.ClassDef):
                continue
            takes_all = any(
                arg.arg == "runtime"
                for made in kind.body
                if isinstance(made, ast.FunctionDef) and made.name == "__init__"
                for arg in [*made.args.args, *made.args.kwonlyargs]
            )
            used = parts_used_by(kind)
            if takes_all and used is not None and len(used) <= 3:
                found[kind.name] = used
    assert found == {}


def test_nobody_asks_whether_an_axis_is_used():
    """An axis that is not has a part, too: see `runtime.Parts`."""
    axes = "|".join(field.name for field in dataclasses.fields(runtime.Parts))
    assert places_of(rf"(store|runtime|made)\.({axes}) is (not )?None") == []


@pytest.mark.parametrize("field", dataclasses.fields(runtime.Parts))
def test_what_stands_for_an_unused_axis_has_what_others_ask_it_for(field):
    """What others use as `runtime.<part>.<name>`, or `self._<part>.<name>`."""
    name = field.name
    pattern = re.compile(
        rf"(?<!tfdist\.)(?:(?:runtime|made)\.|self\._){name}\.(\w+)"
    )
    used = set()
    for path in ROOT.joinpath("tfdist").rglob("*.py"):
        used |= set(pattern.findall(path.read_text()))
    known = set(dir(getattr(runtime_of_defaults(), field.name)))
    assert used - known == UNUSED.get(field.name, set())


def test_no_two_files_have_a_class_of_the_same_name():
    """A traceback, a log and a search name one thing each."""
    homes = {}
    for path in sorted(ROOT.joinpath("tfdist").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(name_of(path))
    assert {n: found for n, found in homes.items() if len(found) > 1} == {}


def test_docstrings_name_the_thing():
    """As the field does: "The log" or "Returns ...", not "What has been"."""
    vague = ("What ", "How ", "Which ", "Where ", "Who ", "Whose ", "When ")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted(ROOT.joinpath("tfdist").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
        and (text := ast.get_docstring(node) or "").startswith(vague)
    ]
    assert found == []


def test_local_variables_of_calls_are_read_in_one_place():
    """Ruff keeps private modules and attributes where they belong."""
    found = {
        path.name
        for path in ROOT.joinpath("tfdist").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("f_locals", "f_globals")
    }
    # The other one reads TensorFlow's, and says whether it has found them.
    assert found == {"private_keras_calls.py", "private_tensorflow.py"}
