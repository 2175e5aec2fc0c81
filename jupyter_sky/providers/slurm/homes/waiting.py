"""How a node that does not share the login node's home waits to be prepared.

The task of the job creates a private folder on the node's own disk, and waits in it. Steps of the
same job put the agent's files there, and finally the command that starts the agent.
"""

from __future__ import annotations

import math
import shlex

from jupyter_sky.providers.slurm.on_node import SPECS
from jupyter_sky.providers.ssh.setup.facts import RUNTIME

# Time during a step does not count: making an environment can take an hour.
_WAIT = (
    RUNTIME
    + """
own=$(umask); umask 077
folder=$runtime/$1-$SLURMD_NODENAME
mkdir -p "$runtime" && chmod 700 "$runtime" && mkdir "$folder" || exit
leave() { rm -rf "$folder"; exit 143; }
trap leave TERM INT
echo $$ >"$folder/pid"
echo "$SLURM_PROCID $own" >"$folder/task.part" && mv "$folder/task.part" "$folder/task" || leave
until test -e "$folder/go"; do
    for busy in "$folder"/busy.*; do
        test -e "$busy" && kill -0 "${busy##*.}" 2>/dev/null && SECONDS=0
    done
    test "$SECONDS" -lt "$2" || leave
    sleep 0.2
done
trap - TERM INT
exec >"$folder/said" 2>&1
. "$folder/go"
"""
)

_OF_A_STEP = (
    RUNTIME
    + """
folder=$runtime/{start}-$SLURMD_NODENAME
for again in $(seq 150); do test -e "$folder/task" && break; sleep 0.2; done
test -e "$folder/task" || { echo "no task of the job waits there" >&2; exit 1; }
export SSH_CONNECTION="- - {address} -"
: >"$folder/busy.$$" && trap 'rm -f "$folder/busy.$$"' EXIT
"""
)

TASK = 'cat "$folder/task"'
"""Says which task of the job a node has, and what the user's programs make files with there."""

# The keys of agents arrive on standard input, so that nobody sees them on a command line.
_GO = """
umask 077
cat >"$folder/{specs}" || exit
printf %s {command} >"$folder/go.part" && mv "$folder/go.part" "$folder/go" || exit
pid=$(cat "$folder/pid")
while kill -0 "$pid" 2>/dev/null; do
    ls "$folder"/node-*.json >/dev/null 2>&1 && break
    sleep 0.1
done
if cat "$folder"/node-*.json 2>/dev/null; then
    rm -rf "$folder"
else
    grep -v '^$' "$folder/said" | tail -n 1 >&2
    rm -rf "$folder"
    exit 1
fi
"""


def wait_command(start: str, grace: float) -> list[str]:
    """Return the command of a task that waits.

    Parameters
    ----------
    start
        The name of the start, which no other one has.
    grace
        Seconds after which it ends if nobody prepares the node.
    """
    return ["bash", "-c", _WAIT, "bash", start, str(math.ceil(grace))]


def of_a_step(start: str, address: str) -> str:
    """Return the lines before a script that works on a node.

    Parameters
    ----------
    start
        The name of the start.
    address
        Where other nodes reach this one.
    """
    return _OF_A_STEP.replace("{start}", start).replace("{address}", address)


def go(command: str) -> str:
    """Return the script that lets a task continue, and prints its agent's answer."""
    return _GO.format(specs=SPECS, command=shlex.quote(command))
