"""``jupyter sky …``: the commands of ``%sky``, typed into a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from IPython.core.application import ENV_CONFIG_DIRS, SYSTEM_CONFIG_DIRS
from IPython.core.interactiveshell import InteractiveShell
from IPython.paths import get_ipython_dir
from traitlets.config import Config
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

from jupyter_sky import __version__
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.notebook.commands.dispatch import Commands
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.ipython.auto_cells import Auto
from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.definitions import COMMANDS, parse_words
from jupyter_sky.notebook.options.parser import Argument, HelpRequested
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.notebook.session import Session

_OF_NOTEBOOKS = ("push", "pull", "panel", "auto")
"""Commands that mean nothing without a notebook."""

_REMOTE = ("logs", "attach")
"""Commands that print what ranks wrote, and not only words of ours."""

_FAILED, _MISUSED, _STOPPED = 1, 2, 130
"""Exit statuses."""


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words say, those of the command line by default; return the exit status."""
    words = sys.argv[1:] if words is None else words
    try:
        return _run(words)
    except HelpRequested as asked:
        print(_overview() if words[:1] in ([], ["-h"], ["--help"]) else _spoken(asked.text))
        return 0
    except RemoteError as error:
        print("\n".join(error._render_traceback_()), file=sys.stderr)
    except UsageError as error:
        print(f"jupyter sky: {_spoken(str(error))}", file=sys.stderr)
        return _MISUSED
    except (SkyError, sqlite3.Error, OSError) as error:
        if isinstance(error, BrokenPipeError):  # as of `jupyter sky logs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        else:
            print(f"jupyter sky: {_spoken(str(error))}", file=sys.stderr)
    except KeyboardInterrupt as stop:
        print(f"\n{_spoken(str(stop))}".rstrip(), file=sys.stderr)
        return _STOPPED
    return _FAILED


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["--version"]:
        print(__version__)
        return 0
    command, options = parse_words(words)
    if command in _OF_NOTEBOOKS:
        raise UsageError(f"`%sky {command}` belongs into a notebook: type it in a cell there.")
    # Without a kernel a shell says in lines what a notebook shows in displays.
    shell = InteractiveShell.instance(config=_settings())
    session = Session(shell, Sky(parent=shell))
    ours = contextlib.redirect_stdout(_Spoken(sys.stdout))
    try:
        with contextlib.nullcontext() if command in _REMOTE else ours:
            well = Terminal(shell, session, Auto(shell)).do(command, options)
        sys.stdout.flush()
    finally:
        session.close()
    return _FAILED if well is False else 0


class Terminal(Commands):
    """What differs in a terminal: there is no notebook whose cluster is meant."""

    def do(self, command: str, options: Any) -> bool | None:
        """Do a command; where it names no cluster, the only one is meant."""
        needs_one = not getattr(options, "remove", None)
        for argument in COMMANDS[command][1] if needs_one else ():
            if argument.kind is types.CLUSTER and getattr(options, argument.field) is None:
                if command == "up":
                    raise UsageError("a cluster of a terminal needs a name: add `--cluster NAME`.")
                setattr(options, argument.field, _only_one(command, argument))
        return super().do(command, options)

    def _scale(self, options: Namespace) -> None:
        with self._session.visit(options.cluster) as cluster:
            if cluster.shared:
                raise UsageError(
                    f"a notebook is connected to {cluster.name} and has to know its nodes: scale "
                    "it in that notebook, or with the button in JupyterLab's sidebar."
                )
        super()._scale(options)

    def _attach(self, options: Namespace) -> None:
        with self._session.visit(options.name) as cluster:
            run = cluster.pop_unseen_run()
            if run is None:
                print(f"{cluster.name}: nothing runs; `jupyter sky logs` shows what was written")
                return
            where = format_ranks(run.task.ranks)
            print(
                f"{cluster.name}: `{run.task.title or 'a run'}` on {where}; Ctrl-C leaves it "
                "running",
                flush=True,
            )
            self._follow(cluster, run)

    def _follow(self, cluster: Cluster, run: RunHandle) -> None:
        renderer = Renderer(self._shell, run.task.show)
        try:
            run.follow(
                lambda event: renderer.render(event, flush=run.nothing_waits),
                notice=NoticeLine(self._shell, cluster.name).say,
                is_leaving=lambda: True,
            )
        except Interrupted:
            if run.finished:
                raise
            print(
                f"\n{cluster.name}: it goes on; `jupyter sky attach {cluster.name}` comes back to "
                "it, `jupyter sky interrupt` stops it"
            )
            return
        finally:
            renderer.finish()
        run.check()


def _only_one(command: str, argument: Argument) -> str:
    """Return the name of the only cluster there is."""
    names = [row.name for row in registry.rows()]
    if not names:
        raise UsageError("there is no cluster: `%%sky --nodes 4` above a cell starts one.")
    if len(names) > 1:
        example = f"{argument.name} {names[0]}" if argument.is_option else names[0]
        raise UsageError(
            f"there are {', '.join(names)}: say which, as in `%sky {command} {example}`."
        )
    return names[0]


def _settings() -> Config:
    """Return what IPython's configuration says of us, to notebooks as well as here."""
    folders = [*SYSTEM_CONFIG_DIRS, *ENV_CONFIG_DIRS, Path(get_ipython_dir()) / "profile_default"]
    found = Config()
    for folder in folders:
        for name in ("ipython_config.py", "ipython_kernel_config.py"):
            with contextlib.suppress(ConfigFileNotFound):
                found.merge(PyFileConfigLoader(name, path=str(folder)).load_config())
    return Config(
        {
            "Sky": found.Sky,
            "HistoryManager": {"enabled": False},
            # What goes to a file or a program has none.
            "InteractiveShell": {} if sys.stderr.isatty() else {"colors": "nocolor"},
        }
    )


def _overview() -> str:
    commands = "".join(
        f"  {name:<12}{help}\n" for name, (help, _) in COMMANDS.items() if name not in _OF_NOTEBOOKS
    )
    return (
        "usage: jupyter sky COMMAND [options]\n\n"
        f"The clusters of your notebooks, in a terminal.\n\n{commands}\n"
        "`jupyter sky COMMAND -h` says more of each."
    )


def _spoken(text: str) -> str:
    """Return a sentence that a notebook would show, as a terminal says it."""
    return re.sub(r"(?<!%)%sky\b", "jupyter sky", text)


class _Spoken:
    """A stream that says what a notebook would show as a terminal says it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_spoken(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
