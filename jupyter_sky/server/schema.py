"""The schema of requests and answers, and whether something is as it says."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match


class Invalid(ValueError):
    """Something is not as the schema says; says what."""


def check(name: str, value: Any) -> None:
    """Raise `Invalid` if a value is not of the kind that the schema describes under ``name``."""
    error = best_match(_validator(name).iter_errors(value))
    if error is not None:
        raise Invalid(f"{error.json_path.removeprefix('$.')}: {error.message[:200]}")


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = json.loads((files(__package__) / "schema.json").read_text("utf-8"))
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
