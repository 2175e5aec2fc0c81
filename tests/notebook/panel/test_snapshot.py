"""The snapshot is the same in Python and in TypeScript."""

from __future__ import annotations

import re
import types
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from jupyter_sky.cluster import snapshot
from tests.notebook.panel import samples
from tests.paths import LABEXTENSION

TYPESCRIPT = LABEXTENSION / "src" / "snapshot.ts"


def in_typescript(hint: Any) -> str:
    """How TypeScript writes a type."""
    simple = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}
    if hint in simple:
        return simple[hint]
    if is_typeddict(hint):
        return hint.__name__.removesuffix("View")
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " | ".join(f"'{each}'" for each in hint)
    parts = get_args(hint)
    origin = get_origin(hint)
    if origin is types.UnionType:
        return " | ".join(map(in_typescript, parts))
    if origin is Literal:
        return " | ".join(str(part) if isinstance(part, int) else f"'{part}'" for part in parts)
    if origin is list:
        item = in_typescript(parts[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if origin is tuple:
        return f"[{', '.join(map(in_typescript, parts))}]"
    raise TypeError(hint)


def test_python_and_typescript_say_the_same() -> None:
    python = {
        name.removesuffix("View"): {
            key: in_typescript(hint) for key, hint in get_type_hints(value).items()
        }
        for name, value in vars(snapshot).items()
        if is_typeddict(value)
    }
    typescript = {
        name: dict(re.findall(r"(\w+): (.*);", body))
        for name, body in re.findall(
            r"export interface (\w+) \{(.*?)\n\}", TYPESCRIPT.read_text(), re.DOTALL
        )
    }
    assert "Snapshot" in python
    assert typescript == python


def test_the_samples_are_snapshots() -> None:
    sample = samples.snapshot(gpu="A100")
    assert sample.keys() == snapshot.Snapshot.__annotations__.keys()
    for name in ("cluster", "run", "output"):
        declared = getattr(snapshot, f"{name.title()}View").__annotations__
        assert sample[name].keys() == declared.keys()  # type: ignore[literal-required]
    assert sample["ranks"][0].keys() == snapshot.RankView.__annotations__.keys()
    assert sample["nodes"][0].keys() == snapshot.NodeView.__annotations__.keys()
