"""The architecture document names files, classes and functions that exist."""

import ast
import pathlib
import re

import pytest

from tests.words import architecture_test

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "developers" / "architecture.md").read_text("utf-8")
PATH = re.compile(r"^(?:tests/)?[a-z_*]+(?:/[a-z_]+)*(?:/|\.py)$")
NAME = re.compile(r"^[A-Za-z_]\w*(?:\.[a-z_]\w*)?$")


def names_in(path):
    """What a file defines: `function`, `Class`, `Class.method`."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    top = [node for node in tree.body if isinstance(node, kinds)]
    methods = {
        f"{owner.name}.{node.name}"
        for owner in top
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    }
    return {node.name for node in top} | methods


def steps():
    """(file, names) for each place that the walks lead to."""
    for row in re.findall(r"(?m)^\|[^|]*\|.*\|(.*)\|$", TEXT):
        for place in row.split(","):
            spans = re.findall(r"`([^`]+)`", place)
            if spans and spans[0].endswith(".py"):
                yield spans[0], [n for n in spans[1:] if NAME.match(n)]


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 200


def home_of(path):
    return ROOT if path.startswith("tests/") else ROOT / "tfdist"


def test_files_and_directories_exist():
    (picture,) = re.findall(r"(?s)```\n(.*?)```", TEXT)
    found = {
        *filter(PATH.match, re.findall(r"`([^`\n]+)`", TEXT)),
        *re.findall(r"\b[a-z_]+/(?=[ \n,])|private_\*\.py", picture),
    }
    assert len(found) > 50
    for path in found:
        assert any(home_of(path).glob(path.rstrip("/"))), path


@pytest.mark.parametrize("file", sorted({file for file, _ in steps()}))
def test_functions_are_where_the_walks_lead_to(file):
    known = names_in(home_of(file) / file)
    for place, names in steps():
        if place == file:
            assert set(names) <= known, set(names) - known


def test_the_picture_shows_all_rooms_top_down():
    shown = re.findall(r"(?m)^ │   (\w+) ", TEXT)
    assert tuple(reversed(shown)) == architecture_test.ROOMS
