"""The messages between the sidebar and the server: their types, and a check against the schema.

``schema.json`` describes all of them; the classes here are the messages that the server creates. A
test compares the two.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypedDict

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from jupyter_sky.cluster.cost_meter import Unit

ClusterStatus = Literal["starting", "ready", "running", "lost", "stopped", "down", "unknown"]


class Clusters(TypedDict):
    """The answer of ``GET clusters``."""

    version: Literal[1]
    jupyter_sky: str
    trouble: str
    clusters: list[Entry]


class Entry(TypedDict):
    """One cluster; ``schema.json`` explains its fields."""

    id: str
    name: str
    provider: str
    nodes: int | None
    gpu: str | None
    created: float | None
    state: ClusterStatus
    note: str
    kernels: list[Kernel]
    price: float | None
    cost: float | None
    unit: Unit
    stoppable: bool
    running_price: float | None
    idle: IdleTimeout | None
    line: str | None
    snapshot: dict[str, Any] | None
    snapshot_kernel: str | None
    seen: float | None


class Kernel(TypedDict):
    """A live kernel that is connected to a cluster."""

    id: str
    notebook: str
    path: str | None
    busy: bool
    jupyter_sky: str


class IdleTimeout(TypedDict):
    """When an idle cluster ends itself, in seconds, and whether it then keeps its disks."""

    timeout: float
    left: float | None
    keeps_disks: bool


class Environment(TypedDict):
    """The answer of ``GET kernels/{id}``."""

    loaded: bool
    jupyter_sky: str | None
    note: str


class Invalid(ValueError):
    """A value does not match the schema; the message says where and why."""


def check(name: str, value: Any) -> None:
    """Check a value against the definition ``name`` of the schema.

    Raises
    ------
    Invalid
        If it does not match.
    """
    error = best_match(_validator(name).iter_errors(value))
    if error is not None:
        raise Invalid(f"{error.json_path.removeprefix('$.')}: {error.message[:200]}")


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json.loads((files(__package__) / "schema.json").read_text("utf-8"))
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
