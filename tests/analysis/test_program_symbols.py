"""Which names a program binds at its top level, whatever version of Python it is."""

from __future__ import annotations

import pytest

from jupyter_sky.analysis.program_symbols import program_symbols


@pytest.mark.parametrize(
    ("program", "bound"),
    [
        ("squares = [i * i for i in a]", "squares"),
        ("[i for i in a]\ni = 1", "i"),
        ("[[v for v in u] for u in a]", ""),
        ("import os.path as path, numpy.linalg", "path numpy"),
        ("class A:\n    b = {k: v for k, v in a}", "A"),
    ],
)
def test_variables_of_comprehensions_are_none_of_it(program: str, bound: str) -> None:
    symbols, _ = program_symbols(program)
    names = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    assert names == set(bound.split())
