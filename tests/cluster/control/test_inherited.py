"""What ranks have from the process that forks them, and how they end."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import jupyter_sky as sky
from jupyter_sky.transport.templates import later

MAKES_SOMETHING = """
import pathlib, sys, weakref

class Made: ...

def note(*what):
    with pathlib.Path(__file__).with_suffix(".txt").open("a") as file:
        print(*what, file=file)

before = Made()
weakref.finalize(before, note, "before")
"""

ENDS_WITH_THE_RANK = """
import atexit, weakref, makes_something as module

there = module.Made()
weakref.finalize(there, module.note, "finalized", rank)
atexit.register(module.note, "atexit", rank)
"""


def test_a_rank_finalizes_what_is_its_own(new_with, tmp_path, monkeypatch) -> None:
    # The user's own modules are loaded again by each rank; one that is installed is not.
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    (folder / "makes_something.py").write_text(MAKES_SOMETHING)
    cells = new_with([sky.Plugin("makes", preload=("makes_something",))], 2)
    cells.run("rank = __import__('jupyter_sky').instance_info().rank\n" + ENDS_WITH_THE_RANK)
    cells.cluster.down()
    said = (folder / "makes_something.txt").read_text().splitlines()
    assert sorted(said) == ["atexit 0", "atexit 1", "finalized 0", "finalized 1"]


def test_a_rank_imports_nothing_of_ours_by_itself(new) -> None:
    cells = new(nodes=2)
    own = "__import__('sys').modules.keys() - imported_versions._preloaded"
    cells.run("from jupyter_sky.serialization import imported_versions")
    found: list[Any] = cells.ask(f"[each for each in {own} if each.startswith('jupyter_sky')]")
    assert found == [[]] * 2


def test_a_module_that_is_edited_is_loaded_again_although_it_was_inherited(
    new_with, tmp_path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "inherited_by_ranks.py"
    module.write_text("value = 1\n")
    cells = new_with([sky.Plugin("own", preload=("inherited_by_ranks",))], 1)
    cells.run("import inherited_by_ranks")
    module.write_text("value = 2  # of another length\n")
    assert cells.ask("inherited_by_ranks.value") == [2]


def test_ranks_inherit_what_they_import_later_if_the_notebook_has_imported_it(
    new_with, monkeypatch
) -> None:
    monkeypatch.setitem(later.LATER, "json", "colorsys")
    plugins = [sky.Plugin("colours", preload=("json",))]
    inherited = "'colorsys' in __import__('sys').modules"
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    without = new_with(plugins, 2)
    assert without.ask(inherited) == [False] * 2
    # The template that it has left does for the next cluster, which needs more.
    monkeypatch.setitem(sys.modules, "colorsys", ModuleType("colorsys"))
    assert new_with(plugins, 2).ask(inherited) == [True] * 2
    # What cannot be imported there is missing only where a cell imports it.
    monkeypatch.setitem(later.LATER, "json", "no_module_of_nodes")
    monkeypatch.setitem(sys.modules, "no_module_of_nodes", ModuleType("no_module_of_nodes"))
    assert new_with(plugins, 1).ask(inherited) == [False]
