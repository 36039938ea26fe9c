"""Programs under methods: each cell is what the table says.

`make test` runs a few programs, each under another method; `make nightly` runs
all (`tests.keras_programs.main`).
"""

import ast
import concurrent.futures
import inspect
import re
import textwrap

import pytest

from tests.keras_programs import document
from tests.keras_programs import runs
from tests.keras_programs import table
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.rows import ROWS
from tests.multi_process.conftest import zygote
from tfdist.strategies import catalogue

__all__ = ["zygote"]

# Those that are started at a time: they wait more than they compute.
CLUSTERS = 3
# Column -> row; ways of exchanging something that no other smoke has.
GATE = {
    "softsync": "counting_layer",
    "dana": "weights_swapped_for_validation",
    "parameter_averaging": "shuffled",
    "diloco (ring)": "interrupted",
}


@pytest.fixture(scope="module")
def problems(zygote, tmp_path_factory):
    """What is not as expected, by column; some clusters at a time."""
    # Made here: of threads that begin at once each would make one.
    tmp_path_factory.getbasetemp()

    def run(column):
        directory = tmp_path_factory.mktemp("column")
        name = GATE[column]
        found = runs.reports_of(zygote, directory, column, [name])
        return {name: ROWS[name].problem(column, r) for name, r in found}

    with concurrent.futures.ThreadPoolExecutor(CLUSTERS) as pool:
        return dict(zip(GATE, pool.map(run, GATE), strict=True))


@pytest.mark.smoke
@pytest.mark.parametrize("column", GATE)
def test_a_program_under_methods_of_every_kind(problems, column):
    assert problems[column] == {GATE[column]: ""}


def test_every_registered_method_is_a_column():
    assert {entry.name for entry in catalogue.ENTRIES} <= set(COLUMNS)


def test_every_row_says_something_of_every_method():
    assert len(ROWS) >= 60
    for row in ROWS.values():
        for column in COLUMNS:
            row.cell(column)


def test_programs_are_short():
    for row in ROWS.values():
        source = textwrap.dedent(inspect.getsource(row.program))
        (node,) = ast.parse(source).body
        lines = len(ast.unparse(node).splitlines())
        assert lines <= table.MOST_LINES, row.name


def test_documents_say_what_cells_refer_to():
    for row in ROWS.values():
        for cell in row.expected.values():
            if isinstance(cell, table.Documented):
                text = (document.DOCS / cell.document).read_text("utf-8")
                assert cell.sentence in re.sub(r"\s+", " ", text), row.name


def test_the_document_is_made_of_the_table():
    assert document.PATH.read_text("utf-8") == document.text()


@pytest.mark.parametrize(
    ("expected", "reports"),
    [
        (1.0, [{"value": 1.0}, {"value": 2.0}]),
        (1.0, [{"value": 1.0}, None]),
        (1.0, [{"value": 1.0}, {"error": "ValueError: no"}]),
        (1, [{"value": 1}, {"value": 1.000001}]),
        ([1.0, 2.0], [{"value": [1.0]}] * 2),
        (table.Refused("no"), [{"error": "no"}, {"value": 1.0}]),
        (table.Refused("no"), [{"error": "no"}, {"error": "yes"}]),
        (table.Each((1.0, 2.0)), [{"value": 1.0}] * 2),
        (table.Loose(-1.0), [{"value": 1.0}] * 2),
        (table.Loose(4), [{"value": 5}] * 2),
        (table.Documented(1.0, "", ""), [{"value": 2.0}] * 2),
    ],
)
def test_what_is_not_as_expected_is_seen(expected, reports):
    assert table.problem(expected, reports)


@pytest.mark.parametrize(
    ("expected", "reports"),
    [
        (1.0, [{"value": 1.0}] * 2),
        (lambda: 1.0, [{"value": 1.0}] * 2),
        (table.Refused("n.t"), [{"error": "not"}] * 2),
        (table.Each((1.0, 2.0)), [{"value": 1.0}, {"value": 2.0}]),
        (table.Loose([-1.0, 4]), [{"value": [-7.0, 4]}] * 2),
        (table.Documented(1.0, "", ""), [{"value": 1.0}] * 2),
        (table.Wrong("hangs"), [None, None]),
    ],
)
def test_what_is_as_expected_is_good(expected, reports):
    assert not table.problem(expected, reports)
