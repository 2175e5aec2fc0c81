"""What a rank imports of jupyter_sky: its own rooms, and what the notebook's pickles name.

A pickle names functions and classes by their modules, and who loads it imports those. That must not
draw the notebook's side onto the nodes.
"""

from __future__ import annotations

import sys

from tests.cluster.namespace.notebook import open_notebook

# Plugins are pickled by their names: they are `api` and `plugins`, and say in terms of
# `providers.spec` and of its volumes, which are data alone, what an image has to contain.
ALLOWED = {"node", "serialization", "transport", "analysis", "api", "plugins"}
ALLOWED_BESIDE = {"providers", "providers.spec", "providers.buckets", "providers.buckets.volume"}
GROUND = {"errors", "formatting", "paths"}


def test_a_rank_imports_nothing_of_the_notebooks_side(new, monkeypatch) -> None:
    notebook = open_notebook(new(2).cluster, monkeypatch)
    notebook.here(
        "import functools, xml\nimport xml.sax.saxutils\n"
        "class Node:\n"
        "    def __init__(self, **parts): vars(self).update(parts)\n"
        "    @functools.cached_property\n"
        "    def first(self): return 1\n"
        "items = [1]\n"
        "node = Node(items=items)\n"
        "@functools.lru_cache\n"
        "def f(): return node, items\n"
    )
    notebook.there("f(), node.first, xml.sax.saxutils.escape('<')\nmade = Node()", out=["made"])
    # It refers to what the rank has already.
    notebook.here("later = Node(node=node, items=items, made=made)")
    assert notebook.ask("later.node is node and later.items is items") == [True] * 2
    notebook.there("import sys\nmodules = sorted(sys.modules)", gather=["modules"])
    for modules in notebook.names["modules"]:
        assert "jupyter_sky.serialization.module_reference" in modules
        ours = {name.partition(".")[2] for name in modules if name.startswith("jupyter_sky.")}
        strange = {name for name in ours if name.partition(".")[0] not in ALLOWED | GROUND}
        assert strange - ALLOWED_BESIDE == set()
    assert "jupyter_sky.cluster.cluster" in sys.modules
