"""The schema says the same as the types of TypeScript, and as the snapshots of Python."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any, is_typeddict

import pytest
from jsonschema import Draft202012Validator

from jupyter_sky.server import schema
from tests.notebook.panel import samples
from tests.paths import LABEXTENSION

SCHEMA = json.loads((files("jupyter_sky.server") / "schema.json").read_text("utf-8"))
TYPESCRIPT = LABEXTENSION / "src"


def in_typescript(described: dict[str, Any]) -> str:
    """How TypeScript writes what a schema describes."""
    match described:
        case {"$ref": name}:
            return str(name).removeprefix("#/$defs/")
        case {"const": value}:
            return json.dumps(value)
        case {"enum": words}:
            return " | ".join(f"'{word}'" for word in words)
        case {"anyOf": parts}:
            return " | ".join(map(in_typescript, parts))
        case {"type": list() as names}:
            return " | ".join(in_typescript({**described, "type": name}) for name in names)
        case {"type": "array", "prefixItems": parts}:
            return f"[{', '.join(map(in_typescript, parts))}]"
        case {"type": "array", "items": item}:
            kind = in_typescript(item)
            return f"({kind})[]" if " | " in kind else f"{kind}[]"
        case {"type": "integer" | "number"}:
            return "number"
        case {"type": "string" | "boolean" | "null" as name}:
            return str(name)
    raise TypeError(described)


def interfaces(name: str) -> dict[str, dict[str, str]]:
    """The interfaces of a file, each with the types of its fields."""
    return {
        interface: dict(re.findall(r"(\w+): (.*);", body))
        for interface, body in re.findall(
            r"export interface (\w+) \{(.*?)\n\}", (TYPESCRIPT / name).read_text(), re.DOTALL
        )
    }


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_typescript_says_the_same() -> None:
    ours = {
        name: {field: in_typescript(each) for field, each in definition["properties"].items()}
        for name, definition in SCHEMA["$defs"].items()
    }
    assert interfaces("api.ts") | interfaces("snapshot.ts") == ours


def test_python_says_the_same() -> None:
    ours = [
        each
        for each in vars(schema).values()
        if is_typeddict(each) and each.__module__ == schema.__name__
    ]
    assert len(ours) == 5
    for each in ours:
        assert [*each.__annotations__] == [*SCHEMA["$defs"][each.__name__]["properties"]]


# Pages that were loaded before there was a field go on to send the message without it.
ADDED = {"Scale": ["max_price"]}


def test_every_field_is_there_always() -> None:
    for name, definition in SCHEMA["$defs"].items():
        always = [*definition["required"], *ADDED.get(name, ())]
        assert always == list(definition["properties"]), name


def test_every_route_has_an_answer_that_is_described() -> None:
    named = {name for route in SCHEMA["routes"].values() for name in route.values()}
    assert named <= SCHEMA["$defs"].keys()


@pytest.mark.parametrize("gpu", [None, "A100"])
def test_snapshots_are_as_it_says(gpu: str | None) -> None:
    snapshot = {"$ref": "#/$defs/Snapshot", "$defs": SCHEMA["$defs"]}
    shown = json.loads(json.dumps(samples.snapshot(gpu=gpu)))
    Draft202012Validator(snapshot).validate(shown)
