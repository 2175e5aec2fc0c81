"""Errors of cells, and advice on missing names."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from IPython import get_ipython

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.machines import find_broken
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe_local
from jupyter_sky.cluster.inventory.storage.row import unreadable
from jupyter_sky.cluster.namespace.items.predefined import is_predefined
from jupyter_sky.cluster.runs.task import CellPlace
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list, format_ranks, format_some, similar_names
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.notebook.project import missing
from jupyter_sky.serialization import cell_sources

STARTED_BY = "`%%sky --nodes 4` above a cell"
"""What starts a cluster: in a terminal, it is a command."""

NONE_RUNNING = f"no cluster is running: {STARTED_BY} starts one."

# The message of a rank about missing names (see `jupyter_sky.node.rank.namespace.namespace`).
_NOT_THERE = re.compile(r"(\w+)(?:, \w+)* was asked for")
# How `jupyter_sky.serialization.diagnosis` says that a value cannot be brought.
_STAYS_THERE = re.compile(r"^(\w+)\S* cannot be brought to the notebook", re.MULTILINE)
# IPython's message.
_NO_MAGIC = re.compile(r"magic (?:function )?`(%{1,2})(\w+)` not found")
# Messages of libraries, and what to do instead of what they are about.
_KNOWN = {
    "trying to initialize the default process group twice": (
        "the ranks of a cluster are in a process group before any cell runs: leave out "
        "`init_process_group`, or run the program with `%sky torchrun`"
    ),
    "no running event loop": (
        "on a rank an event loop runs in cells that await: write `await` in this cell, as in "
        "`await asyncio.sleep(0)`"
    ),
}
_LISTED = 8  # names of a rank, or of clusters
_OUTPUTS = ("_", "__", "___")
_OF_THE_GROUP = ("rank", "local_rank", "world_size")  # which other tools define in cells


class InvalidCell(UsageError):
    """A cell does not compile, so it was not sent to any rank; `error` counts all lines of it."""

    def __init__(self, error: SyntaxError, place: CellPlace) -> None:
        line = error.lineno or 1
        super().__init__(f"{error.msg} (line {line})")
        _, *code = traceback.format_exception_only(error)
        name = cell_sources.name(place.title)
        self._text = "".join([f"  {name}, line {line}\n", *code])

    def _render_traceback_(self) -> list[str]:
        return [self._text.rstrip()]


def advise(
    error: RemoteError,
    cluster: Cluster,
    namespace: Mapping[str, Any],
    asked_by: Mapping[str, str],
) -> None:
    """Add advice to a rank's error: about a missing name, package or file, and what is known.

    A cell's names are found in its syntax tree. A name that is only used in evaluated strings is
    not found, and names that ``--in`` leaves out are not sent.

    Parameters
    ----------
    error
        The error.
    cluster
        The cluster of the rank.
    namespace
        The notebook's namespace.
    asked_by
        The requested names, each with its option, like ``--out``.
    """
    if not isinstance(error, NameError):
        known = (advice for message, advice in _KNOWN.items() if message in str(error))
        advice = error.advice or next(known, "") or _about_magic(error)
        error.advice = advice or missing.advice(error, cluster)
        return
    if undefined := re.match(r"name '(\w+)' is not defined", str(error)):
        if _is_of_module(error):  # whose names are its own
            return
        name = undefined[1]
        if name in namespace and not is_predefined(name, namespace):
            error.advice = f"the notebook has {name}: `%sky push {name}` sends it to the ranks"
        elif name in _OUTPUTS:
            error.advice = "ranks keep no output of earlier cells: give the value a name there"
        elif having := [each for each in cluster.all_ranks if name in cluster.sync.names_of(each)]:
            there = f"{format_ranks(having)} {'has' if len(having) == 1 else 'have'} {name}, and "
            there += f"rank {error.rank} does not"
            if error.rank in having:  # that a cell deleted it is not reported
                there = f"an earlier cell made {name} on {format_ranks(having)}"
            error.advice = f"{there}: run the cell again that makes it"
        elif name == "sky":
            error.advice = "add `import jupyter_sky as sky` to this cell, or run it in the notebook"
        elif name in _OF_THE_GROUP:
            error.advice = (
                f"each rank has it as `sky.instance_info().{name}`, after "
                "`import jupyter_sky as sky`"
            )
        elif similar := _similar_name(cluster, error.rank, name):
            error.advice = f"did you mean `{similar}`?"
    elif wanted := _NOT_THERE.match(str(error)):
        command = asked_by.get(wanted[1], "--out")
        error.advice = _name_instead(cluster, error.rank, wanted[1], command)


def _is_of_module(error: RemoteError) -> bool:
    return any(each["place"].endswith(".py") for each in error.failures[0].chain[:1])


def check_pulled(error: RemoteError, cluster: Cluster) -> None:
    """Raise a sentence if ``%sky pull`` asked a rank for a name that it does not have.

    Raises
    ------
    UsageError
        If that is what the rank's error is about.
    """
    if isinstance(error, NameError) and (wanted := _NOT_THERE.match(str(error))):
        name, rank = wanted[1], error.rank
        instead = _name_instead(cluster, rank, name, "%sky pull")
        raise UsageError(f"%sky pull {name}: rank {rank} has no {name}; {instead}") from None


def check_names(
    names: Sequence[str], namespace: Mapping[str, Any], option: str, cluster: Cluster | None
) -> None:
    """Refuse names that the notebook does not have.

    Parameters
    ----------
    names
        The names.
    namespace
        The notebook's.
    option
        What the sentence of an error begins with, like ``--in``.
    cluster
        The cluster whose ranks may have them instead.

    Raises
    ------
    UsageError
        When the notebook does not have one of them.
    """
    for name in names:
        if name not in namespace:
            line = cluster and pull_line(cluster, name)
            instead = f"only the ranks have it: `{line}` brings it" if line else "define it first"
            raise UsageError(f"{option} {name}: the notebook has no {name}; {instead}.")


def pull_line(cluster: Cluster, name: str) -> str | None:
    """Return the line that fetches a name from the ranks; ``None`` if none of them has it."""
    for rank in cluster.all_ranks:
        if name in cluster.sync.names_of(rank):
            return f"%sky pull {name}" + (f" --ranks {rank}" if rank else "")
    return None


def not_brought(cluster: Cluster, out: Iterable[str], error: BaseException | None = None) -> str:
    """Return how to get what ranks have of the ``--out`` of a cell that ended too early.

    Parameters
    ----------
    cluster
        The cluster of the cell.
    out
        What it was to bring.
    error
        What ended it: it may say of names that they cannot be brought.
    """
    there = cluster.sync.names_of(cluster.all_ranks[0]) if cluster.alive else set[str]()
    there -= {*_STAYS_THERE.findall(str(error))} if error else set()
    names = [name for name in out if name.partition(":")[0] in there]
    return f"--out brought nothing: `%sky pull {' '.join(names)}` does." if names else ""


def _name_instead(cluster: Cluster, rank: int, name: str, command: str) -> str:
    """Say what to type after ``command`` instead of a name: a similar one, or one of all."""
    if similar := _similar_name(cluster, rank, name):
        return f"did you mean `{command} {similar}`?"
    names = sorted(each for each in cluster.sync.names_of(rank) if not each.startswith("_"))
    if not names:
        return "it has no variables yet."
    return f"it has {format_some(names, _LISTED)}."


def _similar_name(cluster: Cluster, rank: int, name: str) -> str | None:
    return next(iter(similar_names(name, cluster.sync.names_of(rank))), None)


def _about_magic(error: RemoteError) -> str:
    """Return advice about a magic that the notebook has, by an extension or of the user's."""
    found, shell = _NO_MAGIC.search(str(error)), get_ipython()
    if not found or not shell or found[2] == "sky":
        return ""
    magic, kind = f"{found[1]}{found[2]}", "cell" if found[1] == "%%" else "line"
    if shell.find_magic(found[2], kind) is None:
        return ""
    return (
        f"the notebook has {magic}, and the ranks have not: load its extension in a `%%sky` cell, "
        f"or define it there; or type {magic} in a cell of its own"
    )


def no_cluster(name: str | None, to: str = "") -> str:
    """Return a sentence that there is no such cluster, listing those that are there."""
    if name and find_broken(name):
        return unreadable(name)
    rows = registry.rows()
    if there := next((row for row in rows if row.name == name), None):
        if there.is_starting:
            return f"cluster {name} is being started by another notebook: wait for it."
        return f"cluster {name} did not come up: `%sky gc` removes what is left of it."
    # Clusters of other computers are not contacted: one of these may be gone, too.
    phases = probe_local(rows)
    names = [row.name for row in rows if phases.get(row.id) != ProbePhase.GONE]
    is_notebook = typed_command() == "%sky"
    own = "of this notebook" if is_notebook else "of this program"
    more = [f"{len(names) - _LISTED} more"] if len(names) > _LISTED + 1 else names[_LISTED:]
    listed = format_list([*names[:_LISTED], *more])
    known = f"there {'is' if len(names) == 1 else 'are'} {listed}"
    known = known if names else "none is running"
    if names and not name:
        it = "it" if len(names) == 1 else "one of them"
        if is_notebook:
            known += f"; `%sky attach {names[0]}` makes {it} this notebook's"
        else:
            known += f"; `--cluster {names[0]}` uses {it}"
    return f"there is no cluster {name or own}{to and f' to {to}'}: {known}."


def gone(name: str) -> str:
    """Return a sentence that a cluster has ended, and that it is not known here why."""
    why = "it was ended, has ended itself, or has lost a node"
    return f"cluster {name} is gone, with what its ranks had: {why}."
