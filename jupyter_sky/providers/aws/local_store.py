"""What is kept of AWS on the user's disk: cached answers, keys of clusters, known locations."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from jupyter_sky.paths import home, replace_text, text_made_once


def folder() -> Path:
    """Return the folder of all that is kept; only the user can read it."""
    path = home() / "aws"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def owner() -> str:
    """Return the id of this registry on this computer: others may use the same account.

    A copy of the folder, and the same folder on another computer, has another one. The name of the
    computer says nothing of that: it changes with the network, and with each start of a container.
    """
    place = home()
    machine = ""
    with contextlib.suppress(OSError):
        machine = Path("/etc/machine-id").read_text().strip()
    about = [machine, str(place.resolve()), place.stat().st_ino]
    return text_made_once(_owner_file(about), _former_owner(about) or uuid.uuid4().hex[:12])


def _former_owner(about: Sequence[object]) -> str:
    """Return the id that earlier versions gave, if any: what they rented is tagged with it."""
    with contextlib.suppress(OSError):
        return _owner_file([socket.gethostname(), *about]).read_text()
    return ""


def _owner_file(about: Sequence[object]) -> Path:
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
    return folder() / f"owner-{digest}"


def add_location(location: str) -> None:
    """Write down that something may be rented at a location."""
    kept = folder() / "places"
    kept.mkdir(exist_ok=True)
    (kept / quote(location, safe=" ")).touch()


def locations() -> list[str]:
    """Return the locations at which something may be rented."""
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
        Asks anew; what it returns can be written as JSON. Nobody changes it: while the file is the
        same, it is read once.
    """
    path = folder() / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        now = path.stat()
        kept = _read(path, (now.st_ino, now.st_size, now.st_mtime_ns))
        age = time.time() - kept["asked"]
        if 0 <= age < seconds:
            return kept["answer"], age
    answer = ask()
    # A full disk must not keep instances from being ended: it is asked again the next time.
    with contextlib.suppress(OSError):
        replace_text(path, json.dumps({"asked": time.time(), "answer": answer}))
    return answer, 0.0


@functools.lru_cache(maxsize=16)
def _read(path: Path, version: tuple[int, ...]) -> Any:
    return json.loads(path.read_text())
