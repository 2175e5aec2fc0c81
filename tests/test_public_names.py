"""The lazily imported names of the package root, as a user and a type checker see them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jupyter_sky


@pytest.mark.parametrize("name", jupyter_sky.__all__)
def test_a_public_name_resolves_and_stays(name: str) -> None:
    value = getattr(jupyter_sky, name)
    assert value is not None
    assert vars(jupyter_sky)[name] is value


def test_completion_offers_exactly_what_resolves() -> None:
    assert set(jupyter_sky.__all__) == set(jupyter_sky._HOMES)
    assert set(jupyter_sky.__all__) <= set(dir(jupyter_sky))


def test_type_checkers_see_the_same_homes() -> None:
    tree = ast.parse(Path(jupyter_sky.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: f"{statement.module}.{alias.name}"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module.startswith("jupyter_sky")
        for alias in statement.names
    }
    assert seen == {name: place.replace(":", ".") for name, place in jupyter_sky._HOMES.items()}


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Locall'"):
        jupyter_sky.Locall  # noqa: B018
