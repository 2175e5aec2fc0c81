"""Each claim of SECURITY.md names tests that hold it, and they are there."""

from __future__ import annotations

import ast
import re

from tests.paths import ROOT

TEXT = (ROOT / ".github" / "SECURITY.md").read_text()
ROWS = [line.split("|")[1:3] for line in TEXT.splitlines() if line.startswith("| ")]
CLAIMS = [(claim.strip(), tests) for claim, tests in ROWS if claim.strip() != "claim"]


def defined() -> set[str]:
    """Return the names of all tests."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
    return found


def test_each_claim_names_tests_that_are_there() -> None:
    there = defined()
    assert len(CLAIMS) > 20
    for claim, tests in CLAIMS:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, claim
        assert not [name for name in named if name not in there], claim


def test_what_it_names_elsewhere_is_there_too() -> None:
    for path in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (ROOT / path).is_file(), path
