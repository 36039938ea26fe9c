"""Messages that `docs/troubleshooting.md` quotes are messages of the code."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
# Rows that quote other programs say whose message it is.
FOREIGN = re.compile(r"\((TensorFlow|Keras)\)")


def quoted():
    """Texts in quotation marks in the first cells of the tables."""
    for cell in re.findall(r"(?m)^\| ([^|]*) \|", TEXT):
        if not FOREIGN.search(cell):
            yield from re.findall(r'"([^"]*)"', cell)


def literals():
    """All strings of the package, in one string."""
    found = []
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_quoted_messages_are_in_the_code():
    known = literals()
    texts = list(quoted())
    assert len(texts) > 50
    assert [text for text in texts if text not in known] == []
