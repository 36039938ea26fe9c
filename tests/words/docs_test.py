"""Links, tables, flags and methods in the documents exist."""

import inspect
import pathlib
import re

import pytest

from tfdist import compression
from tfdist.cli import advise
from tfdist.cli import compare
from tfdist.cli import doctor
from tfdist.cli import isolation
from tfdist.cli import simulate
from tfdist.compression import registry as codecs
from tfdist.simulation import sandblaster
from tfdist.strategies import catalogue
from tfdist.strategies import local_presets
from tfdist.strategies import registry

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SIMULATOR = (DOCS / "simulator.md").read_text("utf-8")
AVERAGING = (DOCS / "averaging.md").read_text("utf-8")
STRATEGIES = (DOCS / "strategies.md").read_text("utf-8")
NEW_METHOD = (DOCS / "new_method.md").read_text("utf-8")
DOCTOR = (DOCS / "doctor.md").read_text("utf-8")
SECURITY = (DOCS / "security.md").read_text("utf-8")
COMMANDS = {
    "advise": advise,
    "compare": compare,
    "doctor": doctor,
    "simulate": simulate,
}


def anchors(text):
    """Those that GitHub makes of the headings of a document."""
    without_code = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
    headings = re.findall(r"(?m)^#+ (.*)$", without_code)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def test_links_lead_somewhere():
    for path in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        text = path.read_text("utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if link.startswith(("http:", "https:")):
                continue
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {link}"
            if anchor:
                known = anchors(target.read_text("utf-8"))
                assert anchor in known, f"{path.name}: {link}"


def test_table_of_presets_is_what_they_are():
    rows = re.findall(
        r"^\| `(\w+Strategy)` \|[^|]*\|[^|]*\| (\d+)", AVERAGING, re.MULTILINE
    )
    home = local_presets
    assert {name for name, _ in rows} == {
        name for name in vars(home) if name.endswith("Strategy")
    } - {"ParameterServerStrategy"}
    for name, period in rows:
        parameters = inspect.signature(getattr(home, name)).parameters
        known = parameters.get("period", parameters.get("n_push"))
        assert int(period) == known.default, name


def shown(value):
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def row(entry):
    """A method's row in the table of strategies.md."""
    others = {k: v for k, v in entry.axes.items() if v is not None}
    settings = ", ".join(
        f"`{key}={shown(value)}`"
        for key, value in {**entry.settings, **others}.items()
    )
    cells = [f"`{entry.name}`", settings, entry.help, entry.paper]
    return f"| {' | '.join(cells)} |"


def test_table_of_methods_is_the_registry():
    _, _, table = STRATEGIES.partition("## Names of methods")
    rows = re.findall(r"^\| `.*\|$", table.partition("\n## ")[0], re.MULTILINE)
    assert rows == [row(entry) for entry in catalogue.ENTRIES]


def test_table_of_strategies_has_the_presets_and_their_papers():
    table = STRATEGIES.partition("\n\n")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)\(.*\|(.*)\|$", table, re.MULTILINE))
    presets = {e.preset: e.paper for e in catalogue.ENTRIES if e.preset}
    # Engines of their own.
    bases = {
        "ParameterServerStrategy",
        "AllReduceStrategy",
        "GossipStrategy",
        "PeerToPeerStrategy",
        "SandblasterStrategy",
    }
    assert set(rows) - bases == set(presets)
    for preset, paper in presets.items():
        assert paper in rows[preset]


def test_table_of_corrections_has_all_of_them():
    _, _, text = STRATEGIES.partition("| correction | the optimizer gets")
    found = set(re.findall(r"^\| `(\w+)\(", text.partition("\n\n")[0], re.M))
    assert found == {
        entry.place.partition(":")[2]
        for entry in catalogue.ENTRIES
        if entry.axis == "correction"
    }


def test_table_of_codecs_has_all_of_them():
    text = (DOCS / "compression.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \| `(\w+)\(", text, re.MULTILINE)
    shown = [
        (compression.parse(example), name)
        for examples, name in rows
        for example in re.findall(r"`(.*?)`", examples)
    ]
    assert [type(codec).__name__ for codec, _ in shown] == [n for _, n in shown]
    assert {name for _, name in shown} == {
        type(codecs.parse(name)).__name__ for name in codecs.names()
    }


def test_programs_of_new_methods_are_those_that_are_tried():
    programs = re.findall(r"```python\n(.*?)```", NEW_METHOD, re.DOTALL)
    toys = DOCS.parent / "tests" / "strategies" / "toys"
    assert sorted(programs) == sorted(
        path.read_text("utf-8") for path in toys.glob("*.py")
    )


def test_methods_that_are_shown_are_there():
    for path in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        text = re.sub(r"\\\n\s*", "", path.read_text("utf-8"))
        for flag in re.findall(r"--strateg(?:y|ies)=([^\s`]+)", text):
            for named in registry.split([flag]):
                if "lookahead" in named or named in ("none", "NAME"):
                    continue
                if sandblaster.of(named) is None:
                    registry.method(named)


@pytest.mark.parametrize(
    "text",
    [STRATEGIES, SIMULATOR, NEW_METHOD],
    ids=["strategies", "simulator", "new_method"],
)
def test_commands_of_the_simulator_have_the_flags_that_are_shown(text):
    lines = re.sub(r"\\\n\s+", "", text)
    shown = re.findall(
        rf"^    tfdist ({'|'.join(COMMANDS)}) (.*)$", lines, re.MULTILINE
    )
    assert len(shown) >= 3
    for command, arguments in shown:
        known = COMMANDS[command].define_flags()
        for name in re.findall(r"--(\w+)", arguments):
            assert name in known, f"tfdist {command} --{name}"


def test_table_of_the_doctor_s_flags_is_what_they_are():
    rows = re.findall(r"^\| `--(\w+)(?:=(\w+))?`", DOCTOR, re.MULTILINE)
    known = doctor.define_flags()
    assert {name for name, _ in rows} == set(known) - {"help", "h", "?"}
    for name, value in rows:
        default = known[name].default
        assert value == ("" if default is None else f"{default:g}"), name


def test_table_of_isolation_has_all_ways():
    assert tuple(re.findall(r"^\| `(\w+)`.*\|$", SECURITY, re.M)) == (
        isolation.WAYS
    )
