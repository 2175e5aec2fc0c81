"""Making a host into a node: what it needs is put there, and the agent started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath as Path
from typing import Any

from jupyter_sky.providers.ssh.connection.connection import CommandError, HostError, Line
from jupyter_sky.providers.ssh.setup.code_package import NEEDED, package
from jupyter_sky.providers.ssh.setup.probe import Probe, python_command

ROOMY = 2**30
"""Bytes of free shared memory from which on it is used for large data."""

_START_WITHIN = 120.0


def check_python(line: Line, python: str) -> None:
    """Refuse an interpreter of the person's that cannot run a node."""
    try:
        found = json.loads(line.run(python_command(python, *NEEDED)))
    except CommandError as error:
        raise HostError(f"{python} cannot be used as Python: {error}") from None
    if missing := found["missing"]:
        raise HostError(
            f"{python} has no {', '.join(missing)}: install `jupyter-sky` there, or leave out "
            "python=, so that an environment is made"
        )


def send_package(line: Line, here: Probe) -> str:
    """Send our package unless it is there, and return the folder to import it from."""
    sent = package()
    folder = f"{here.ours}/code/{sent.digest}"
    words = {"folder": shlex.quote(folder), "parent": shlex.quote(f"{here.ours}/code")}
    if line.run(
        "touch -c {folder}; test -d {folder} && echo there || true".format(**words)
    ).strip():
        return folder
    # Whoever comes first makes it: a folder of that name is always whole.
    line.run(
        """
        set -e; umask 077
        mkdir -p {parent}
        new=$(mktemp -d {parent}/new.XXXXXX)
        tar -xzf - -C "$new"
        mv -T "$new" {folder} 2>/dev/null || rm -rf "$new"
        test -d {folder}
        """.format(**words),
        sent.archive,
    )
    return folder


def start_agent(
    line: Line, here: Probe, settings: Mapping[str, Any], python: str, code: str
) -> dict[str, Any]:
    """Start the agent and return what it says of itself, with its folders.

    Parameters
    ----------
    settings
        The agent's ``spec.json``; what depends on the host is added here.
    python
        The interpreter.
    code
        The folder of our package.
    """
    folder, blobs = folders(settings["id"], settings["index"], here)
    work = work_folder(here, settings["cluster"])
    made = [str(Path(python).parents[1])] if python.startswith(f"{here.ours}/envs/") else []
    spec = {
        **settings,
        "keeps": [code, *made],
        "socket": f"{folder}/agent.sock",
        "blobs": blobs,
        "blob_limit": None,
        "cwd": work,
        "sys_path": [],
        "python_path": code,
    }
    script = """
        set -e; umask 077
        mkdir -p {runtime}
        test -O {runtime} || {{ echo {runtime} belongs to somebody else; exit 1; }}
        chmod 700 {runtime}
        export PYTHONPATH={code}
        mkdir {folder}
        mkdir {blobs}
        mkdir -p {work}
        cat > {folder}/spec.json
        cd {work}
        {python} -P -m jupyter_sky.node {folder} && exit
        tail -n 5 {folder}/agent.log 2>/dev/null
        rm -rf {folder} {blobs}
        exit 1
        """
    places = {"runtime": here.runtime, "folder": folder, "blobs": blobs, "work": work}
    words = {**places, "code": code, "python": python}
    command = script.format(**{name: shlex.quote(word) for name, word in words.items()})
    try:
        said = line.run(command, json.dumps(spec).encode(), _START_WITHIN)
    except CommandError as error:
        raise HostError(f"the agent did not start: {error}") from None
    return {**json.loads(said), "folder": folder, "blobs": blobs}


def end_agent(line: Line, folder: str, blobs: str) -> None:
    """Kill an agent that is left, with all that it started, and remove its files."""
    # No other process has its folder on the command line; the list is made before grep is there.
    # What is about to start can fork behind it, so that it is made again until nothing is found.
    line.run(
        """
        for again in 1 2 3 4 5; do
            found=
            for file in $(grep -lasF -- {folder} /proc/[0-9]*/cmdline); do
                file=${{file#/proc/}}
                kill -KILL "${{file%/cmdline}}" 2>/dev/null && found=yes
            done
            test "$found" || break
            sleep 0.1
        done
        rm -rf {folder} {blobs}
        """.format(folder=shlex.quote(folder), blobs=shlex.quote(blobs))
    )


def work_folder(here: Probe, cluster: str) -> str:
    """Return where ranks stand; what the person's code writes there stays."""
    return f"{here.home}/jupyter-sky/{cluster}"


def folders(identity: str, index: int, here: Probe) -> tuple[str, str]:
    """Return the folder of an agent, and that of its large data."""
    name = f"{identity}-{index}"
    folder = f"{here.runtime}/{name}"
    # Containers often have a shared memory of 64 MB; the disk, and its cache, is better then.
    roomy = here.shared >= ROOMY
    return folder, f"/dev/shm/jupyter-sky-{name}" if roomy else f"{folder}/blobs"
