"""The commands of ``%sky``, and the functions that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.notebook.commands import control, logs, project, scripts, status, variables
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.life import lifecycle, stops
from jupyter_sky.notebook.options.lines import parse_line
from jupyter_sky.transport.event_loop import CleanUpFailed

Handler = Callable[[CommandContext, Any], object]
"""Runs a command with its parsed options.

It returns False if the user has to do something, or what it gives the notebook, such as a run that
it has left in the background.
"""


# These need the remote providers, which have many modules, and are imported on demand.


def _offers(context: CommandContext, options: Any) -> None:
    from jupyter_sky.notebook.commands.offers import offers

    offers(context, options)


def _snapshot(context: CommandContext, options: Any) -> None:
    from jupyter_sky.notebook.commands.life.snapshot import snapshot

    snapshot(context, options)


def _doctor(context: CommandContext, options: Any) -> bool:
    from jupyter_sky.notebook.commands.doctor import doctor

    return doctor(context, options)


def _gc(context: CommandContext, options: Any) -> None:
    from jupyter_sky.notebook.commands.life.gc import gc

    gc(context, options)


HANDLERS: Mapping[str, Handler] = {
    "up": lifecycle.up,
    "down": lifecycle.down,
    "stop": stops.stop,
    "start": stops.start,
    "status": status.status,
    "logs": logs.logs,
    "push": variables.push,
    "pull": variables.pull,
    "vars": variables.vars_of_ranks,
    "same": variables.same,
    "metrics": variables.metrics,
    "pip": project.pip,
    "put": project.put,
    "get": project.get,
    "attach": lifecycle.attach,
    "panel": status.panel,
    "where": control.where,
    "profile": control.profile,
    "debug": control.debug,
    "interrupt": control.interrupt,
    "restart": control.restart,
    "scale": control.scale,
    "torchrun": scripts.torchrun,
    "launch": scripts.launch,
    "shell": scripts.shell,
    "run": scripts.run,
    "export": scripts.export,
    "forward": control.forward,
    "auto": control.auto,
    "dask": lifecycle.dask,
    "offers": _offers,
    "costs": status.costs,
    "snapshot": _snapshot,
    "doctor": _doctor,
    "gc": _gc,
}
"""By the names in `jupyter_sky.notebook.options.commands.COMMANDS`."""


class Dispatcher:
    """Runs commands.

    Parameters
    ----------
    context
        The context for each command.
    handlers
        The commands by name.
    """

    def __init__(self, context: CommandContext, handlers: Mapping[str, Handler] = HANDLERS) -> None:
        self._context = context
        self._handlers = handlers

    def run_line(self, line: str) -> object:
        """Parse a ``%sky`` line, run its command, and return its value for the notebook.

        Raises
        ------
        UsageError
            If it cannot be done; the message says what to type instead.
        HelpRequested
            When the line asks for help.
        Interrupted
            When Ctrl-C came.
        """
        command, options = parse_line(line)
        try:
            given = self.run(command, options)
        except Interrupted:
            raise
        except CleanUpFailed as stop:
            raise Interrupted(f"`%sky {command}` was stopped; {stop}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"`%sky {command}` was stopped.") from None
        return None if isinstance(given, bool) else given

    def run(self, command: str, options: Any) -> object:
        """Run a command, and return the result of its handler.

        Parameters
        ----------
        command
            Its name.
        options
            Its parsed options, from `parse_line`.
        """
        return self._handlers[command](self._context, options)
