"""Which names a running cell has surely bound when it calls something: real programs tell."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from jupyter_sky.analysis.bound_so_far import Span, bound_so_far


class Program:
    """A program that calls ``run``, maybe by other functions, and what is told at each call."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.told: list[str] = []
        self.later = ""  # at the last call
        self._last: Span | None = None
        self._names: dict[str, Any] = {}
        self._before: dict[str, int] = {}
        names: dict[str, Callable[..., Any]] = {"run_cell_magic": lambda *_: self.run()}
        at_end = contextmanager(self.at_end)
        functions = {"run": self.run, "twice": self.twice, "runs": self.runs, "at_end": at_end}
        program = {"ip": type("Shell", (), names), **functions}
        exec(compile(code, "<cell>", "exec"), program, self._names)

    def run(self) -> None:
        now = place(sys._getframe())
        values = {name: id(value) for name, value in self._names.items()}
        changed = {name for name in values if values[name] != self._before.get(name)}
        bound, later = bound_so_far(self.code, now, self._last, changed)
        self.told.append(" ".join(sorted(bound)))
        self.later = " ".join(sorted(later))
        self._last, self._before = now, values

    def twice(self) -> None:
        self.run()
        self.run()

    def at_end(self) -> Iterator[None]:
        yield
        self.run()

    def runs(self) -> Iterator[int]:
        for each in range(2):
            self.run()
            yield each


def place(frame: FrameType | None) -> Span:
    while frame and (frame.f_code.co_filename, frame.f_code.co_name) != ("<cell>", "<module>"):
        frame = frame.f_back
    assert frame
    found = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, column, end_column = found
    assert line and end_line and column is not None and end_column is not None
    return line, column, end_line, end_column


MAGIC = "ip.run_cell_magic('sky', '', '')"


@pytest.mark.parametrize(
    ("code", "told", "later"),
    [
        ("a = 0\nrun()\nb = 0", ["a"], "b"),
        ("a = 0; run(); b = 0; run(); c = 0", ["a", "b"], "c"),
        ("a = 0\na += 1\nb = []\nb += [1]\nrun()", ["a b"], ""),
        ("a = 0\nrun()\na += 1\nrun()", ["a", ""], ""),
        # A loop: what is above it is bound once, what is in it in each pass.
        ("a = 0\nfor i in range(2):\n    b = 0\n    run()\n    c = 0", ["a b", "b"], ""),
        ("a = 0\nfor i in range(3): run()", ["a", "", ""], ""),
        ("for i in range(2):\n    a = 0\n    twice()", ["a", "", "a", ""], ""),
        ("for i in range(2):\n    a = 0\n    [run() for _ in '12']", ["a", "", "a", ""], ""),
        (
            "for i in range(2):\n    a = 0\n    for j in range(2):\n        b = 0\n        run()",
            ["a b", "b", "a b", "b"],
            "",
        ),
        ("for i, j in enumerate('12'):\n    a = 0\n    run()\n    b = 0\n    run()", [*"abab"], ""),
        ("for i in range(2):\n    a = 0\n    if i: run()\n    else: run()", ["a", "a"], ""),
        # Where nothing tells that it is another pass, nothing is told.
        ("i = 2\nwhile i:\n    i -= 1\n    a = 0\n    run()", ["a i", ""], ""),
        (f"i = 2\nwhile i:\n    i -= 1\n    a = 0\n    {MAGIC}", ["a i", "a"], ""),
        (f"for i in '11':\n    a = 0\n    got = {MAGIC}", ["a", "a"], ""),
        ("for i in '11':\n    a = 0\n    twice()", ["a", "", "", ""], ""),
        ("a = 0\nfor i in runs():\n    b = 0", ["a", ""], ""),
        (
            "for i in '11':\n    a = 0\n    with at_end():\n        b = 0\n        run()",
            ["a b", "", "b", ""],
            "",
        ),
        # What may not have run.
        ("try:\n    a = 0\n    int('')\n    b = 0\nexcept ValueError:\n    run()", [""], ""),
        ("if ip: a = 0\nelse: b = 0\nrun()", [""], ""),
        ("for i in (1, 2):\n    if i == 1: continue\n    a = 0\n    run()", ["a"], ""),
        ("def f(): a = 0\nf()\nrun()", ["f"], ""),
    ],
)
def test_what_is_bound_before_each_call(code: str, told: list[str], later: str) -> None:
    program = Program(code)
    assert (program.told, program.later) == (told, later)


def test_a_place_that_is_not_in_the_cell_is_refused() -> None:
    with pytest.raises(LookupError):
        bound_so_far("a = 0\nrun()", (1, 0, 1, 6), None, ())
