"""The debugger after a remote error: `%debug` and `%sky debug` show the frames on the rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from traceback import walk_tb

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api import pools_up
from jupyter_sky.api.prompts.keyboard import has_keyboard
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RankLost, RemoteError
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.panel.manager import PanelManager
from jupyter_sky.notebook.session import Session


class PostMortem:
    """Lets IPython's `%debug` debug a remote error on the rank that raised it.

    Of several ranks with the same error it is the lowest: the head, where it is one of them.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._looked_at: RemoteError | None = None
        shell.debugger = self._debug

    def remove(self) -> None:
        """Restore IPython's own `%debug`."""
        vars(self._shell).pop("debugger", None)

    def _debug(self, force: bool = False) -> None:
        if not (force or self._shell.call_pdb):
            return
        error = last_error()
        if error is None and _is_from(_last(), __name__):
            error = self._looked_at  # the user left it with Stop, or nobody could be asked
        self._looked_at = error
        if error is None and _is_from(_last(), __name__, "jupyter_sky.notebook.magics"):
            raise UsageError(
                "the last error has no frames of your code to look at: `%sky debug` looks at the "
                "last one that a cell has raised on the ranks."
            )
        if error is None:
            type(self._shell).debugger(self._shell, force=True)
            return
        if error.origin is None:
            raise UsageError(
                "ranks keep no frames of calls that they take one by one: run the one that failed "
                "alone, as in `f(x) @ pool`, and then `%debug`, or with a breakpoint() in it."
            )
        name, run = error.origin
        if isinstance(error, RankLost):
            raise UsageError(
                f"the process of rank {error.rank} has ended, and its frames with it: nothing is "
                "left to look at. `%sky logs` shows what it has printed."
            )
        pools = {each.name: each for each in pools_up.clusters()}
        cluster = pools.get(name) or self._session.find(name)
        if cluster is None:
            raise UsageError(
                f"cluster {name} has ended: nothing is left to look at. A `with` block ends its "
                "pool when a call fails; a breakpoint() in the function stops it there before."
                if name.startswith("pool-")
                else f"cluster {name} has ended: nothing is left to look at."
            )
        # Of ranks that failed in the same way, it is chance which was the first.
        way = error.failures[0].signature
        rank = min(each.rank for each in error.failures if each.signature == way)
        look_at(self._shell, self._session.panels, cluster, run, (rank,))


def last_error() -> RemoteError | None:
    """Return the last error of the notebook, if it came from a rank."""
    error = _last()
    return error if isinstance(error, RemoteError) else None


def _last() -> BaseException | None:
    return getattr(sys, "last_value", None)


def _is_from(error: BaseException | None, *modules: str) -> bool:
    """Return whether our own code, called by one of these modules, raised an error."""
    traceback = error.__traceback__ if error else None
    names = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(traceback)]
    return bool(names) and names[-1].startswith("jupyter_sky.") and not {*modules}.isdisjoint(names)


def look_at(
    shell: InteractiveShell,
    panels: PanelManager,
    cluster: Cluster,
    run: str,
    ranks: Sequence[int],
    everyone: bool = False,
) -> None:
    """Let the user debug the frames that a failed run has left on its ranks.

    Parameters
    ----------
    shell, panels
        The notebook's shell and panels.
    cluster, run
        The cluster and its run; an empty run stands for the last one that failed on each rank.
    ranks
        The ranks.
    everyone
        Whether commands initially go to all of them.

    Raises
    ------
    UsageError
        If nobody can be asked.
    RemoteError
        If a rank has not kept any frames.
    """
    if not has_keyboard():
        raise UsageError(
            "the debugger needs somebody to type its commands: use it in JupyterLab, Notebook or "
            "a terminal. The traceback above has the lines of the error."
        )
    handle = cluster.run(
        Task(
            ranks=tuple(ranks),
            show=tuple(ranks),
            title="debugger",
            debugging={"keyboard": True, "stops": False, "looks_at": run},
        )
    )
    follow(shell, panels, cluster, handle, asks_all=everyone)
    handle.check()
