"""What users read is plain English: CONTRIBUTING has the words, and these are kept out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.paths import NOTEBOOKS, ROOT

FORBIDDEN = {
    r"\bshall\b": "should, or will",
    r"\banew\b": "again, or a new one",
    r"\bthe person\b": "the user",
    r"\bany more\b": "no longer",
    r"\blooks? at the clusters\b": "updates",
    r"nothing of (it|them) is left": "nothing is left running",
    r"has no keyboard": "does not work on a rank",
    r"\b(is|are) there still\b": "still exists",
    r"\binside of\b": "inside",
    r"\bunasked\b": "without asking",
}
"""What is not written, as a regular expression, and what is instead."""

_SCRIPT = re.compile(r"[\"'`](?:[^\"'`\\\n]|\\.){8,}[\"'`]")


def literals(path: Path) -> Iterator[str]:
    """Yield the strings of a Python file that are no docstrings."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "…".join(str(getattr(part, "value", "")) for part in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in alone:
            yield str(node.value)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text that users may read, and where it is."""
    for path in (ROOT / "jupyter_sky").rglob("*.py"):
        for text in literals(path):
            yield str(path.relative_to(ROOT)), text
    for path in (ROOT / "labextension" / "src").rglob("*.ts"):
        for match in _SCRIPT.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), match[0]
    for name in ("README.md", "labextension/schema/clusters.json"):
        yield name, (ROOT / name).read_text()
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            yield path.name, cell.source


@pytest.fixture(scope="module")
def read() -> list[tuple[str, str]]:
    return list(texts())


@pytest.mark.parametrize("words", FORBIDDEN)
def test_what_users_read_is_plain(read: list[tuple[str, str]], words: str) -> None:
    found = [(place, text) for place, text in read if re.search(words, text)]
    assert found == [], f"write: {FORBIDDEN[words]}"
