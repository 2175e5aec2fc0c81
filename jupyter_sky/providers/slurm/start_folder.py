"""The folder of a start, in the home that nodes share: what agents have to know, and what they say.

It is for this user alone, and gone when the agents have read it: their keys are in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.paths import home
from jupyter_sky.providers.slurm.login import LoginNode
from jupyter_sky.providers.slurm.script import OUTPUT

_MAKE = 'umask 077; mkdir -p "$1" && mktemp -d "$1/$2-XXXXXX"'
_READ = 'test ! -e "$1" || cat "$1"'
_WRITE = 'umask 077; cat > "$1"'
# The list of a folder is asked for anew also where a shared home remembers what was not there.
_AWAIT = """
for again in $(seq "$3"); do
    test -e "$1" || break
    test "$(ls "$1" | grep -c '^node-.*json$')" -gt "$2" && break
    grep -qE "$6" "$5" 2>/dev/null && break
    sleep "$4"
done
cat "$1"/node-*.json 2>/dev/null
grep -m 1 -E "$6" "$5" 2>/dev/null
true
"""
_FAILED = "^srun: error: (.*: tasks? [0-9]|.*[Tt]ask.*launch.* failed)"
"""What srun says of a task that has ended with an error, or that a node could not start."""

_OFTEN = 10.0  # seconds; whoever waits for longer can wait for one more

# The same places as in `NodeEnvironment.starts`.
_REMOVE_ALL = 'rm -rf "${1:-${XDG_CACHE_HOME:-$HOME/.cache}/jupyter-sky}/slurm/$2"-??????'
# The end of a task may be known before srun brings what the task has said of it.
_LAST_LINES = """
test -e "$1" || exit 0
for again in $(seq 20); do
    grep -qvE '^(srun: |[[:space:]]*$)' "$1" && break
    sleep 0.3
done
tail -n 20 "$1" && echo there
true
"""


@dataclass(frozen=True)
class NodeAnswers:
    """What is known of the nodes of a start.

    Attributes
    ----------
    nodes
        What they have said, by the numbers of their tasks.
    failed
        What srun says of the first task that has ended with an error; empty if none has.
    """

    nodes: Mapping[int, Mapping[str, Any]]
    failed: str


@dataclass(frozen=True)
class StartFolder:
    """The folder of one start.

    Attributes
    ----------
    at
        The login node.
    path
        Where it is in the shared home.
    """

    at: LoginNode
    path: str

    @classmethod
    async def make(cls, at: LoginNode, parent: str, prefix: str) -> StartFolder:
        """Make one of a new name."""
        return cls(at, await at.ask(["sh", "-c", _MAKE, "sh", parent, prefix]))

    @property
    def name(self) -> str:
        """Its name, which no other start has."""
        return self.path.rpartition("/")[2]

    async def write(self, name: str, text: str) -> None:
        """Write a file."""
        await self.at.ask(["sh", "-c", _WRITE, "sh", f"{self.path}/{name}"], text.encode())

    async def read(self, name: str) -> str:
        """Return the content of a file; empty if there is none."""
        return await self.at.ask(["sh", "-c", _READ, "sh", f"{self.path}/{name}"])

    async def answers(self, known: int, seconds: float = 0.0) -> NodeAnswers:
        """Return what nodes have said.

        It waits at most so many seconds for there to be more than ``known``, or for a failure.
        """
        pause = 0.3 if seconds < _OFTEN else 1.0
        turns = max(1, round(seconds / pause))
        output = f"{self.path}/{OUTPUT}"
        arguments = [self.path, f"{known}", f"{turns}", f"{pause}", output, _FAILED]
        lines = (await self.at.ask(["sh", "-c", _AWAIT, "sh", *arguments])).splitlines()
        failed = [line.removeprefix("srun: error: ") for line in lines if line.startswith("srun: ")]
        rows: Sequence[dict[str, Any]] = [json.loads(each) for each in lines if each[:1] == "{"]
        return NodeAnswers({row["task"]: row for row in rows}, "".join(failed))

    async def last_line(self) -> str:
        """Return the last line that the job has printed, in words for the end of a sentence.

        It is waited for some seconds for there to be one.
        """
        path = f"{self.path}/{OUTPUT}"
        *lines, there = (await self.at.ask(["sh", "-c", _LAST_LINES, "sh", path])).split("\n")
        if there != "there":
            return f" (it wrote nothing into {self.path})"
        # Of a task that fails srun says at the end how, and before that the task says why.
        said = [line for line in lines if line.strip()]
        own = [line for line in said if not line.startswith("srun: ")]
        last = (own or said or [""])[-1]
        return f", {last}" if last else ""

    async def remove(self) -> None:
        """Remove it with all that is in it."""
        await self.at.ask(["rm", "-rf", self.path])


async def remove_left_behind(at: LoginNode, cluster: str) -> None:
    """Remove the folders of starts of a cluster, where kernels were killed that would have."""
    here = "" if at.host else str(home())
    await at.ask(["sh", "-c", _REMOVE_ALL, "sh", here, cluster])
