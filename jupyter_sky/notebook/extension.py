"""Everything that ``%load_ext jupyter_sky`` brings into a shell, and takes away again."""

from __future__ import annotations

import atexit

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.notebook.commands.dispatch import Commands
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.ipython.assignment_tracker import AssignmentTracker
from jupyter_sky.notebook.ipython.auto_cells import Auto
from jupyter_sky.notebook.ipython.completer import SkyCompleter
from jupyter_sky.notebook.magics import SkyMagics
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.sidebar.actions import Actions
from jupyter_sky.notebook.sidebar.control_channel import Requests
from jupyter_sky.notebook.sidebar.state_publisher import StatePublisher


class Extension:
    """What one shell has of ours."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._settings = Sky(parent=shell)
        self._session = Session(shell, self._settings)
        self._auto = Auto(shell)
        self._assignments = AssignmentTracker(shell, self._session)
        self._completion = SkyCompleter(shell, self._session)
        self._telling = StatePublisher(shell, self._session.known)
        actions = Actions(self._session, self._telling.note)
        self._session.on_connect = self._telling.add
        self._requests = Requests(shell, self._session.panels.handle_request, actions.do)
        commands = Commands(shell, self._session, self._auto)
        shell.register_magics(
            SkyMagics(shell, self._session, self._settings, commands, self._assignments)
        )
        shell.configurables.append(self._settings)
        shell.Completer.custom_matchers.append(self._completion.match)
        atexit.register(self._close)

    def remove(self) -> None:
        """Take it all away; clusters go on until their time is over."""
        self._auto.turn(False)
        self._assignments.remove()
        self._requests.remove()
        self._shell.Completer.custom_matchers.remove(self._completion.match)
        self._shell.configurables.remove(self._settings)
        for kind in ("line", "cell"):
            self._shell.magics_manager.magics[kind].pop("sky", None)
        self._close()
        atexit.unregister(self._close)

    def _close(self) -> None:
        self._telling.close()
        self._session.close()


_extensions: dict[InteractiveShell, Extension] = {}


def load(shell: InteractiveShell) -> None:
    """Bring the extension into a shell, once."""
    if shell not in _extensions:
        _extensions[shell] = Extension(shell)


def unload(shell: InteractiveShell) -> None:
    """Take the extension out of a shell."""
    if extension := _extensions.pop(shell, None):
        extension.remove()
