"""Starting an agent on the computer of this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import last_line
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted


def start_agent(folder: Path, spec: AgentSpec) -> AgentStarted:
    """Start an agent and return what it says of itself when it listens.

    Parameters
    ----------
    folder
        Its folder, which is empty.

    Raises
    ------
    SkyError
        When it does not start, with the last line that it wrote.
    """
    with open(folder / "spec.json", "w", opener=_private) as file:
        file.write(spec.to_json())
    started = subprocess.run(
        # Without the current folder in its path: a `types.py` of the user's is not the library's.
        [sys.executable, "-P", "-m", "jupyter_sky.node", str(folder)],
        env={**os.environ, "PYTHONPATH": _import_path()},
        cwd=spec.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if started.returncode:
        log = folder / "agent.log"
        said = log.read_text() if log.exists() else started.stderr
        raise SkyError(f"the agent did not start: {last_line(said)}")
    ready: AgentStarted = json.loads(started.stdout)
    return ready


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _import_path() -> str:
    package = str(Path(jupyter_sky.__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
