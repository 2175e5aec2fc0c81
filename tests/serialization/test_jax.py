"""What JAX makes of functions and classes travels: rules for derivatives, and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.serialization.pickling import dump
from jupyter_sky.serialization.process.library_settings import LibrarySettings, LibraryWatch
from tests.installed import on_first_use

jax = on_first_use("jax")

RULES = """
import jax
@jax.custom_vjp
def f(x): return x
f.defvjp(lambda x: (x, None), lambda _, g: (g * 2,))
@jax.custom_jvp
def g(x): return x
@g.defjvp
def rule(x, t): return x[0], t[0] * 3
@jax.checkpoint
def h(x): return x * 4
"""
TREES = {
    "class": """
@jax.tree_util.register_pytree_node_class
class Tree:
    def __init__(self, x): self.x = x
    def tree_flatten(self): return (self.x,), None
    @classmethod
    def tree_unflatten(cls, _, parts): return cls(*parts)
""",
    "dataclass": """
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Tree:
    x: float
""",
    "functions": """
class Tree:
    def __init__(self, x): self.x = x
jax.tree_util.register_pytree_node(Tree, lambda t: ((t.x,), None), lambda _, parts: Tree(*parts))
""",
}


def test_rules_for_derivatives(notebook: Any, elsewhere: Any) -> None:
    names = notebook(RULES)
    functions = elsewhere.load(dump([names[name] for name in "fgh"]))
    assert [jax.grad(each)(1.0).item() for each in functions] == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("how", TREES)
def test_an_object_that_jax_looks_into(notebook: Any, elsewhere: Any, how: str) -> None:
    names = notebook(f"import dataclasses, jax\n{TREES[how]}\ntree = Tree(1.0)")
    tree = elsewhere.load(dump(names["tree"]))
    assert type(tree) is not names["Tree"]
    elsewhere.main.Tree = type(tree)
    assert jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))(tree).x == 2.0


def test_the_precision_that_a_notebook_sets_is_taken_over(tmp_path: Path) -> None:
    watch, config = LibraryWatch(), jax.config
    watch.changed()
    config.update("jax_enable_x64", True)
    try:
        settings = LibrarySettings(watch.changed())
        config.update("jax_enable_x64", False)
        settings.install(tmp_path)
        assert jax.numpy.ones(1).dtype == "float64"
    finally:
        config.update("jax_enable_x64", False)
