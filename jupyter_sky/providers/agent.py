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
from jupyter_sky.paths import private_opener
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted
from jupyter_sky.transport.templates import asking


def start_agent(folder: Path, spec: AgentSpec, within: Sequence[str] = ()) -> AgentStarted:
    """Start an agent, and return its line of JSON once it listens.

    Parameters
    ----------
    folder
        Its folder, which must be empty.
    within
        The command of a container, which runs for as long as the agent in it.

    Raises
    ------
    SkyError
        If it does not start, with the last line that it wrote.
    """
    with open(folder / "spec.json", "w", opener=private_opener) as file:
        file.write(spec.to_json())
    env = {**os.environ, "PYTHONPATH": _import_path()}
    python, words = [sys.executable], [str(folder)]
    if within:
        python, words = [*within, "python3"], [str(folder), "--stay"]
    elif place := asking.place_for_agents(spec.templates, env):
        line = asking.ask_for_agent(place, str(folder), env, spec.cwd)
        if line is not None:
            return _ready(line, folder)
        # Room for the folder of a fork; code that looks for agents counts the arguments.
        words, env[asking.PLACE] = [str(folder) + "/" * asking.ROOM], place
    with tempfile.TemporaryFile() as wrong:
        process = subprocess.Popen(
            # The current folder is not on its path: a `types.py` there must not replace the
            # library's.
            [*python, "-P", "-m", asking.AGENT, *words],
            env=env,
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=wrong,
        )
        assert process.stdout
        try:
            # What the interpreter's own start files print comes before the line of JSON.
            line = next((each for each in process.stdout if each.startswith(b"{")), b"")
        except BaseException:  # whoever waits for it has given up
            process.kill()
            raise
        if not line or not within:
            process.stdout.close()
            process.wait()
        wrong.seek(0)
        return _ready(line, folder, wrong.read().decode(errors="replace"))


def _ready(line: bytes, folder: Path, wrong: str = "") -> AgentStarted:
    """Return the JSON that an agent prints; raise its error if it prints none."""
    if line:
        ready: AgentStarted = json.loads(line)
        return ready
    log = folder / "agent.log"
    said = (log.read_text() if log.exists() else "") or wrong
    raise SkyError(f"the agent did not start: {last_line(said)}{_advice(said)}")


def _advice(said: str) -> str:
    missing = re.search(r"No module named '(\w+)'", said)
    if missing and missing[1] in NEEDED:
        return ": install `jupyter-sky` into the Python that runs there"
    return ""


def _import_path() -> str:
    package = str(Path(jupyter_sky.__file__).parents[1])
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
