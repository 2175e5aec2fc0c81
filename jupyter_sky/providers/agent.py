"""Starting an agent on the computer of this process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted


def start_agent(folder: Path, spec: AgentSpec, within: Sequence[str] = ()) -> AgentStarted:
    """Start an agent and return what it says of itself when it listens.

    Parameters
    ----------
    folder
        Its folder, which is empty.
    within
        The command of a container, which lasts as long as the agent in it.

    Raises
    ------
    SkyError
        When it does not start, with the last line that it wrote.
    """
    with open(folder / "spec.json", "w", opener=_private) as file:
        file.write(spec.to_json())
    python = [*within, "python3"] if within else [sys.executable]
    stay = ["--stay"] if within else []
    with tempfile.TemporaryFile() as wrong:
        process = subprocess.Popen(
            # Without the current folder in its path: a `types.py` of the user's is not the
            # library's.
            [*python, "-P", "-m", "jupyter_sky.node", str(folder), *stay],
            env={**os.environ, "PYTHONPATH": _import_path()},
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=wrong,
        )
        assert process.stdout
        line = process.stdout.readline()
        if not line or not stay:
            process.stdout.close()
            process.wait()
        if line:
            ready: AgentStarted = json.loads(line)
            return ready
        log = folder / "agent.log"
        wrong.seek(0)
        said = log.read_text() if log.exists() else wrong.read().decode(errors="replace")
    raise SkyError(f"the agent did not start: {last_line(said)}{_advice(said)}")


def _advice(said: str) -> str:
    missing = re.search(r"No module named '(\w+)'", said)
    if missing and missing[1] in NEEDED:
        return ": install `jupyter-sky` into the Python that runs there"
    return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _import_path() -> str:
    package = str(Path(jupyter_sky.__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
