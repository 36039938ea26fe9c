"""What is refused is named, with what was received and what is allowed."""

import ast
import math
import pathlib
import re

import pytest

from tfdist import checks

ROOT = pathlib.Path(checks.__file__).parent


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1"])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ValueError) as error:
        checks.count("steps", value)
    assert str(error.value) == (
        f"Argument `steps` must be an integer of at least 1. "
        f"Received: steps={value!r}"
    )


def test_what_is_allowed_is_returned():
    assert checks.count("steps", 0, least=0) == 0
    assert checks.positive("seconds", 2) == 2.0
    assert checks.not_negative("seconds", 0) == 0.0
    checks.one_of("method", "etf", ("chain", "etf"))


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, True, "1", None])
def test_what_is_no_finite_number_is_refused(value):
    for check in (checks.positive, checks.not_negative):
        with pytest.raises(
            ValueError, match="^Argument `seconds` must be a fin"
        ):
            check("seconds", value)


def test_zero_is_not_positive():
    with pytest.raises(ValueError, match="above 0. Received: seconds=0$"):
        checks.positive("seconds", 0)


def test_names_that_there_are_are_said():
    with pytest.raises(ValueError, match="chain, etf. Received: method='x'"):
        checks.one_of("method", "x", ("chain", "etf"))


def errors():
    """Texts of errors of `tfdist` about what a user gave, by place."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for text in node.exc.args[:1]:
                    if isinstance(text, ast.Constant | ast.JoinedStr):
                        yield f"{path.name}:{node.lineno}", ast.unparse(text)


def test_errors_have_one_shape():
    """Argument `x` must be ... Received: x=..."""
    other = re.compile(
        r"\bcame:|[,;] (came|got|found) |"
        r"^f?['\"](\w+: )?(?!SCRIPT|There|TF_)\w+ must "
    )
    assert [error for error in errors() if other.search(error[1])] == []
