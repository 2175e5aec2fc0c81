"""Says where a name is that is missing in the notebook, if the ranks have it."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.notebook.errors import pull_line
from jupyter_sky.notebook.session import Session


class MissingNames:
    """Adds a line to the NameError of a cell that ran in the notebook.

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
        shell.events.register("post_run_cell", self._on_post_run_cell)

    def remove(self) -> None:
        """Stop adding lines."""
        self._shell.events.unregister("post_run_cell", self._on_post_run_cell)

    def _on_post_run_cell(self, result: Any) -> None:
        error = result and result.error_in_exec  # there is none where Stop came beside the cell
        cluster = self._session.connected()
        if cluster is None or not isinstance(error, NameError) or isinstance(error, RemoteError):
            return
        if error.name and (line := pull_line(cluster, error.name)):
            print(
                f"{error.name} is on the ranks of {cluster.name}: `{line}` brings it here",
                file=sys.stderr,
            )
