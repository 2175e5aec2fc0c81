"""A script of the user's under torchrun, as what bash is given on each node."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from pathlib import Path

from jupyter_sky.api.environment.imports import modules_typed
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_file
from jupyter_sky.notebook.scripts.node_script import NodeScript, find_folder

# The head keeps the store at which nodes meet. Each says itself at which address others reach it:
# what the system says of its name need not be true in this network. Processes that start again
# get a store of their own: in the one that is shared with those before them, they find where those
# were, connect to what has ended, and fail, so that one failure uses up several restarts.
_MEET = """\
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE="${{TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}}"
mapfile -t addresses <<< "$SKYPILOT_NODE_IPS"
case $MASTER_ADDR in *:*) head="[$MASTER_ADDR]" ;; *) head=$MASTER_ADDR ;; esac
meet=(
  --rdzv-backend=c10d --rdzv-endpoint="$head:$MASTER_PORT" --rdzv-id="$SKYPILOT_TASK_ID"
  --rdzv-conf=is_host=$((SKYPILOT_NODE_RANK == 0)){more}
  --local-addr="${{addresses[SKYPILOT_NODE_RANK]}}"
)
"""
# Without it, each node takes itself for the first; other rendezvous say that they ignore it.
_NUMBER = 'meet+=(--node-rank="$SKYPILOT_NODE_RANK")\n'
_RUN = """\
exec python -m torch.distributed.run --nnodes={nodes} \
--nproc-per-node="$SKYPILOT_NUM_GPUS_PER_NODE" "${{meet[@]}}" {words}
"""


def find_script(line: Namespace) -> tuple[Path, str]:
    """Return the working folder of a line of torchrun, and its script from there.

    As for Python, that may be a folder with a ``__main__.py``.

    Raises
    ------
    UsageError
        When there is no such script; the sentence names one that is meant.
    """
    folder = find_folder(line.options.workdir or ".")
    if not line.is_file:
        return folder, line.script
    typed = Path(line.script).expanduser()
    script = Path(os.path.normpath(folder / typed))
    if script.is_dir() and not (script / "__main__.py").is_file():
        raise UsageError(
            f"{line.script} is a folder without a `__main__.py`: name a script in it, or a module "
            "with `-m`."
        )
    if not script.exists():
        instead = similar_file(typed, "name one that is there.", folder)
        raise UsageError(f"there is no file {line.script} in {folder}: {instead}")
    base = folder
    if not script.is_relative_to(base):  # as they are typed; a link may be on the way to one
        script, base = script.parent.resolve() / script.name, folder.resolve()
    if not script.is_relative_to(base):
        raise UsageError(
            f"{line.script} is not in {folder}, which is what nodes get: add `--workdir FOLDER` "
            "with a folder that has it, and name it from there."
        )
    found = str(script.relative_to(base))
    return folder, f"./{found}" if found.startswith("-") else found  # no option of torchrun's


def named_in(folder: Path, script: str, line: Namespace) -> tuple[Path, frozenset[str]]:
    """Return the modules that a line names or its script imports, and where they are looked for.

    That is the folder which comes first in the path of the script.

    Raises
    ------
    UsageError
        When the script cannot be read.
    """
    if not line.is_file:
        return folder, frozenset({script})
    file = folder / script
    if file.is_dir():
        file /= "__main__.py"
    try:
        text = file.read_text("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{line.script} cannot be read: {error.strerror}.") from None
    return file.resolve().parent, modules_typed([text])


def torchrun_script(line: Namespace, script: str) -> NodeScript:
    """Return what a line of torchrun means for each node."""
    words = shlex.join([*line.torchrun, script, *line.arguments])
    nodes = "1" if line.standalone else '"$SKYPILOT_NUM_NODES"'
    more = shlex.quote(f",{line.rdzv_conf}") if line.rdzv_conf else ""
    meet = "meet=()\n" if line.standalone else _MEET.format(more=more)
    if line.rdzv_backend == "static" and not line.standalone:
        meet += _NUMBER
    text = meet + _RUN.format(nodes=nodes, words=words)
    return NodeScript(text, f"torchrun {line.script}", together=not _is_elastic(line.nnodes))


def _is_elastic(nnodes: str | None) -> bool:
    """Return whether nodes go on when one of them has failed."""
    fewest, _, most = (nnodes or "").partition(":")
    return bool(most) and int(fewest) < int(most)
