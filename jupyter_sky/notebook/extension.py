"""Everything that ``%load_ext jupyter_sky`` adds to a shell, and removes again."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api import pools_up
from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.client_plugins import ClientPlugins, SessionObserver
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.dispatch import Dispatcher
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.ipython.assignment_tracker import AssignmentTracker
from jupyter_sky.notebook.ipython.auto_cells import AutoCells
from jupyter_sky.notebook.ipython.completer import SkyCompleter
from jupyter_sky.notebook.ipython.empty_cells import EmptyCells
from jupyter_sky.notebook.ipython.missing_names import MissingNames
from jupyter_sky.notebook.ipython.post_mortem import PostMortem
from jupyter_sky.notebook.magics import SkyMagics
from jupyter_sky.notebook.output.output_thread import OutputThread
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.sidebar.actions import SidebarActions
from jupyter_sky.notebook.sidebar.answers import answer
from jupyter_sky.notebook.sidebar.control_channel import ControlChannel
from jupyter_sky.notebook.sidebar.state_publisher import StatePublisher
from jupyter_sky.transport import event_loop

_FINISHED_WITHIN = 3.0
"""Seconds in which what the user has stopped is ended, before Jupyter kills a kernel that ends."""


class Extension:
    """The parts of jupyter_sky in one shell.

    Parameters
    ----------
    shell
        The shell that everything is added to.
    given
        Options that override those of cells.

    Attributes
    ----------
    session
        The clusters of the shell.
    """

    def __init__(self, shell: InteractiveShell, given: Mapping[str, Any]) -> None:
        self._shell = shell
        self._output_thread = OutputThread(shell)
        self._settings = Sky(parent=shell)
        self._publisher = StatePublisher(shell)
        pools_up.observe(self._publisher)
        self._plugins = ClientPlugins()
        observers: list[SessionObserver] = [
            _ConnectedLine(shell),
            self._publisher,
            self._plugins,
        ]
        self.session = Session(shell, self._settings, observers, given)
        self._auto = AutoCells(shell)
        self._empty_cells = EmptyCells(shell)
        self._assignments = AssignmentTracker(shell, self.session)
        self._missing_names = MissingNames(shell, self.session)
        self._post_mortem = PostMortem(shell, self.session)
        self._completer = SkyCompleter(shell, self.session)
        actions = SidebarActions(self.session)
        self.session.panels.answer_with(answer)
        self._control_channel = ControlChannel(
            shell, self.session.panels.handle_request, actions.run
        )
        commands = Dispatcher(CommandContext(shell, self.session, self._auto))
        shell.register_magics(
            SkyMagics(shell, self.session, self._settings, commands, self._assignments)
        )
        shell.configurables.append(self._settings)
        shell.Completer.custom_matchers.append(self._completer.match)
        atexit.register(self._close)

    def remove(self) -> None:
        """Remove everything from the shell; clusters stay up until they end by themselves."""
        self._auto.switch(False)
        self._empty_cells.remove()
        self._assignments.remove()
        self._missing_names.remove()
        self._post_mortem.remove()
        self._control_channel.remove()
        self._output_thread.remove()
        self._shell.Completer.custom_matchers.remove(self._completer.match)
        self._shell.configurables.remove(self._settings)
        for magics in self._shell.magics_manager.magics.values():
            magics.pop("sky", None)
            magics.pop("%sky", None)
        self._close(_unloaded)
        atexit.unregister(self._close)

    def _close(self, trouble: Callable[[str], SkyError | None] = lambda name: None) -> None:
        event_loop.finish(_FINISHED_WITHIN)
        pools_up.leave(self._publisher)
        self._publisher.close()
        self._plugins.close()
        self.session.close(trouble)


class _ConnectedLine:
    """Says which clusters are connected that were up before; a `SessionObserver`."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Say it, since the notebook may not expect the cluster to be up."""
        if not is_new:
            with ProgressLine(self._shell, cluster.name) as progress:
                progress.update(f"{describe(cluster)}, still up: connected again")

    def ending(self, cluster: Cluster) -> None:
        """Say nothing: who ends it is told."""

    def disconnected(self, cluster: Cluster) -> None:
        """Say nothing."""


def _unloaded(cluster: str) -> SkyError:
    return SkyError(
        f"jupyter_sky was unloaded: a run that has begun goes on, and `%sky attach {cluster}` "
        "shows it; one that waited for its turn does not begin."
    )


_extensions: dict[InteractiveShell, Extension] = {}


def load(shell: InteractiveShell, given: Mapping[str, Any] | None = None) -> Extension:
    """Add the extension to a shell, once, and return it."""
    if shell not in _extensions:
        _extensions[shell] = Extension(shell, given or {})
    return _extensions[shell]


def unload(shell: InteractiveShell) -> None:
    """Remove the extension from a shell."""
    if extension := _extensions.pop(shell, None):
        extension.remove()
