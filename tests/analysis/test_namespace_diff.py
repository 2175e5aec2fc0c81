"""What a cell has changed in a namespace."""

from __future__ import annotations

from typing import Any

from jupyter_sky.analysis.namespace_diff import NamespaceDiff


def test_what_is_new_changed_and_gone() -> None:
    names: dict[str, Any] = {"same": [1], "other": [1], "gone": 1}
    diff = NamespaceDiff(names)
    names["same"].append(2)
    names["other"] = [1]
    names["new"] = None
    del names["gone"]
    assert diff.changed() == {"other", "new"}
    assert diff.deleted() == {"gone"}


def test_what_ipython_numbers_with_each_cell_and_what_is_no_name_is_no_change() -> None:
    history: dict[Any, Any] = {f"_{n}": n for n in range(1000)}
    history |= {f"_i{n}": str(n) for n in range(1000)} | {5: "five", None: 0}
    kept = {"_", "__", "_i", "_i3d", "_3d", "_x1", "x_1", "_ii", ""}
    names: dict[Any, Any] = {}
    nothing = NamespaceDiff(names)
    names.update(history)
    names.update(dict.fromkeys(kept))
    assert nothing.changed() == kept
    everything = NamespaceDiff(names)
    names.clear()
    assert everything.deleted() == kept
