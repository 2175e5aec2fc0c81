"""The agent of a host: its folders, starting it, removing it."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from jupyter_sky.providers.node_defaults import blob_folder
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell, read_answer
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.transport.protocol.agent_spec import SHELL_OF, AgentSpec, AgentStarted
from jupyter_sky.transport.templates import asking

_START_WITHIN = 120.0


class AgentFolders(NamedTuple):
    """The folder of an agent, and that of its blobs."""

    folder: str
    blobs: str


def agent_folders(identity: str, number: int, facts: HostFacts) -> AgentFolders:
    """Return the folders of a node's agent on a host."""
    folder = f"{facts.runtime_folder}/{identity}-{number}"
    return AgentFolders(folder, blob_folder(folder, facts.shared))


def work_folder(cluster: str, facts: HostFacts) -> str:
    """Return the folder that ranks work in; files that the user's code writes there stay."""
    return f"{facts.home}/jupyter-sky/{cluster}"


def start_agent(
    connection: HostShell, folder: str, spec: AgentSpec, python: str, code: str
) -> AgentStarted:
    """Start an agent, and return its line of JSON once it listens.

    The folder that it is in has been seen to be the user's own then.

    Parameters
    ----------
    folder
        Its folder, which is created.
    python
        The interpreter.
    code
        The folder of our package.

    Raises
    ------
    HostError
        If it does not start, with the last lines that it wrote.
    """
    script = """
        set -e; umask 077
        mkdir -p {runtime}
        test -O {runtime} && test ! -L {runtime} ||
            {{ echo {runtime} belongs to somebody else; exit 1; }}
        chmod 700 {runtime}
        export PYTHONPATH={code}
        mkdir {folder}
        mkdir {blobs}
        mkdir -p {work}
        cat > {folder}/spec.json
        cd {work}
        if said=$({python} -P -m {module} {folder}{room}); then echo "$said"; exit; fi
        tail -n 5 {folder}/agent.log 2>/dev/null || true
        rm -rf {folder} {blobs}
        exit 1
        """
    words = {
        "runtime": folder.rpartition("/")[0],
        "folder": folder,
        "room": "/" * asking.ROOM,
        "module": asking.AGENT,
        "blobs": spec.blobs,
        "work": spec.cwd,
        "code": code,
        "python": python,
    }
    command = script.format(**{name: shlex.quote(word) for name, word in words.items()})
    try:
        said = connection.run(command, spec.to_json().encode(), _START_WITHIN)
    except CommandError as error:
        raise HostError(f"the agent did not start: {error}") from None
    ready: AgentStarted = read_answer(said)
    return ready


def remove_agent(connection: HostShell, folder: str, blobs: str) -> None:
    """Kill an agent, with everything that it started, and remove its files."""
    # No other process has its folder on the command line, or what it has left running in shells of
    # the user in its environment; the list is made before grep starts.
    # Its folder is a whole word there, or has a slash behind it: that of node 10 begins like that
    # of node 1, and both may be on one computer.
    # The files of /proc have zeros in place of ends of lines, at which the grep of BusyBox stops.
    # Starting processes may fork meanwhile, so the list is made again until it is empty.
    connection.run(
        """
        for again in 1 2 3 4 5 6 7 8 9 10; do
            found=
            for file in $(
                grep -laszF -- {folder}/ /proc/[0-9]*/cmdline
                grep -laszxF -- {folder} /proc/[0-9]*/cmdline
                grep -laszxF -- {mark} /proc/[0-9]*/environ
            ); do
                file=${{file#/proc/}}
                kill -KILL "${{file%/*}}" 2>/dev/null && found=yes
            done
            test "$found" || test $again = 1 || break
            sleep 0.03
        done
        rm -rf {folder} {blobs}
        """.format(
            folder=shlex.quote(folder),
            blobs=shlex.quote(blobs),
            mark=shlex.quote(f"{SHELL_OF}={folder}"),
        )
    )
