"""What is kept of AWS on the person's disk: answers that hold for a while, keys of clusters."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from jupyter_sky.paths import home


def folder() -> Path:
    """Return the folder of all that is ours about AWS; nobody else can read it."""
    path = home() / "aws"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def is_used() -> bool:
    """Return whether there has ever been anything to do with AWS."""
    return (home() / "aws").is_dir()


def owner() -> str:
    """Return what tells this person's registry from those of others who use the same account."""
    path = folder() / "owner"
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        file.write(uuid.uuid4().hex[:12])
    return path.read_text()


def remember(place: str) -> None:
    """Note that something may be at a place."""
    kept = folder() / "places"
    kept.mkdir(exist_ok=True)
    (kept / quote(place, safe=" ")).touch()


def places() -> list[str]:
    """Return the places that something may be at."""
    kept = home() / "aws" / "places"
    return sorted(unquote(path.name) for path in kept.iterdir()) if kept.is_dir() else []


def cached(name: str, seconds: float, ask: Callable[[], Any]) -> tuple[Any, float]:
    """Return an answer that is not older than so many seconds, and its age.

    Parameters
    ----------
    name
        What the file is called.
    seconds
        How long an answer holds.
    ask
        Asks anew; what it returns is plain data.
    """
    path = folder() / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        kept = json.loads(path.read_text())
        age = time.time() - kept["asked"]
        if 0 <= age < seconds:
            return kept["answer"], age
    answer = ask()
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({"asked": time.time(), "answer": answer}))
    new.replace(path)
    return answer, 0.0
