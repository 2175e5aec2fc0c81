"""``jupyter sky …``: the commands of ``%sky`` in a terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from IPython.core.application import ENV_CONFIG_DIRS, SYSTEM_CONFIG_DIRS
from IPython.core.interactiveshell import InteractiveShell
from IPython.paths import get_ipython_dir
from traitlets.config import Config
from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

from jupyter_sky import __version__
from jupyter_sky.api.display.description import describe
from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.runs.handle import STOPPED_WITHIN
from jupyter_sky.errors import (
    NOTEBOOK_COMMANDS,
    RESTARTS_TOO,
    RUN_AGAIN,
    ScriptFailed,
    SkyError,
    UsageError,
    as_in_command,
)
from jupyter_sky.formatting import format_ranks, format_some, is_terminal
from jupyter_sky.notebook.commands import control
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.commands.dispatch import HANDLERS, Dispatcher
from jupyter_sky.notebook.commands.life import lifecycle
from jupyter_sky.notebook.commands.scripts import check_can_be_left
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import NONE_RUNNING, STARTED_BY
from jupyter_sky.notebook.ipython.auto_cells import AutoCells
from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.commands import COMMANDS, SCRIPT_COMMANDS
from jupyter_sky.notebook.options.lines import parse_words
from jupyter_sky.notebook.options.parser import Argument, HelpRequested
from jupyter_sky.notebook.options.ranks import choose_ranks
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.output.unread import discard_unread
from jupyter_sky.notebook.places import stays_up, unused_end
from jupyter_sky.notebook.scripts import terminal
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers import providers
from jupyter_sky.transport import event_loop

_QUOTE = ("logs", "attach", "shell", "export", *SCRIPT_COMMANDS)
"""Commands that print what ranks or users wrote, in which nothing is replaced."""

_LISTED = 8  # clusters in a sentence

_FAILED, _MISUSED, _STOPPED, _TERMINATED = 1, 2, 130, 143
"""Exit statuses."""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the command line, and return the exit status."""
    words = sys.argv[1:] if words is None else words
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as some services do
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - until the end
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            # What ranks print may have characters that the user's locale has not.
            stream.reconfigure(errors="replace")
    termination = _Termination()
    signal.signal(signal.SIGTERM, termination)
    try:
        return _run_or_help(words)
    except RemoteError as error:
        said = "\n".join(error._render_traceback_())
        print(said if set(words[:1]) & set(_QUOTE) else _for_terminal(said), file=sys.stderr)
        if isinstance(error, ScriptFailed):
            return error.status
    except UsageError as error:
        _say(error)
        return _MISUSED
    except (SkyError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # as of `jupyter sky logs | head`
            discard_unread()
        else:
            _say(error)
    except KeyboardInterrupt as stop:
        print(f"\n{_for_terminal(str(stop))}".rstrip(), file=sys.stderr)
        return _TERMINATED if termination.heard else _STOPPED
    return _FAILED


def _say(error: Exception) -> None:
    """Print what a command could not do; a sentence that begins with its name has it once."""
    text = _for_terminal(_sentence(error))
    print(text if text.startswith("jupyter sky ") else f"jupyter sky: {text}", file=sys.stderr)


def _sentence(error: Exception) -> str:
    if isinstance(error, SkyError) or not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if error.filename:
        return f"{error.filename}: {error.strerror}."
    try:
        os.write(1, b"\n")  # that of `print` does not say what could not be written
    except OSError:
        return f"the output cannot be written: {error.strerror}."
    return f"{error.strerror}."


class _Termination:
    """The handler of SIGTERM: the first has the effect of Ctrl-C, so that nothing is left over."""

    heard = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.heard:
            self.heard = True
            raise KeyboardInterrupt


def _run_or_help(words: Sequence[str]) -> int:
    try:
        return _run(words)
    except HelpRequested as asked:
        is_overview = words[:1] in ([], ["-h"], ["--help"], ["help"]) and len(words) < 2
        print(_overview() if is_overview else _for_terminal(asked.text), flush=True)
        return 0


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["--version"]:
        print(__version__, flush=True)
        return 0
    options: Any
    command, options = parse_words(words)
    # IPython's advice on a home that cannot be written to: nothing of ours is kept there.
    warnings.filterwarnings("ignore", message="IPython parent", category=UserWarning)
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("this folder no longer exists: change to one that does.") from None
    if command in NOTEBOOK_COMMANDS:
        raise UsageError(f"`%sky {command}` works in a notebook only: type it in a cell.")
    if command == "run":
        from jupyter_sky.notebook.programs.run import run_program  # which has all of a notebook

        given = options.arguments, options.options, options.keep
        return run_program(options.file, *given, _settings())
    if command in SCRIPT_COMMANDS:
        check_can_be_left(options.options)
    shell = _CommandShell.instance(config=_settings())
    session = Session(shell, Sky(parent=shell))
    is_new = False
    handlers = {**HANDLERS, "up": _up, "scale": _scale, "attach": _attach, "shell": _shell}
    commands = Dispatcher(CommandContext(shell, session, AutoCells(shell)), handlers)
    try:
        _choose_cluster(command, options)
        name = options.options.cluster if command in SCRIPT_COMMANDS else None
        is_new = name is not None and registry.find(name) is None
        if command == "start":
            name, is_new = options.name, True
        with contextlib.nullcontext() if command in _QUOTE else _in_words_of_a_terminal():
            done = commands.run(command, options)
            if isinstance(done, BackgroundRun):
                _leave(done)
        sys.stdout.flush()
    finally:
        if is_new and (cluster := session.connected(name)) and cluster.alive:
            print(stays_up(cluster), file=sys.stderr)
        event_loop.finish()
        session.close()
    return _status_of(done)


class _CommandShell(InteractiveShell):  # type: ignore[misc, unused-ignore]
    """A shell without a kernel: it prints as lines what a notebook shows as displays.

    Attributes
    ----------
    words
        As of `ProgramShell`: a terminal or a file takes more of what scripts print than a page.
    """

    words: tuple[str, ...] = ()


def _status_of(done: object) -> int:
    """Return the exit status of a command, or of the program that it ran."""
    if isinstance(done, int) and not isinstance(done, bool):
        return done
    return _FAILED if done is False else 0


def _leave(run: BackgroundRun) -> None:
    """Detach from a run as soon as it can continue without this process."""
    name = run.cluster

    def notice(text: str) -> None:
        print(f"{name}: {_for_terminal(text)}", flush=True)

    try:
        if run.has_next:
            notice("waiting for the setup, as the run is begun from here; Ctrl-C stops it")
        run.wait_until_begun(notice)
    except KeyboardInterrupt:
        run.cancel()
        with contextlib.suppress(TimeoutError):
            run.result(STOPPED_WITHIN)  # its message says how it was stopped
        raise
    if run.done:
        not_begun = "the setup did not end well, and the run was not begun"
        over = not_begun if run.has_next else "over already"
        notice(f"{over}; `jupyter sky logs --cluster {name}` shows what it printed")
        run.result()
        return
    print(
        f"{name}: running in the background; `jupyter sky attach {name}` shows its output, "
        f"`jupyter sky interrupt --cluster {name}` stops it"
    )


def _choose_cluster(command: str, options: Any) -> None:
    """Use the only cluster for a command that names none, since no notebook implies one."""
    # Without a name, `status` is about all of them.
    if getattr(options, "remove", None) or command == "status":
        return
    for argument in COMMANDS[command][1]:
        if argument.type is not types.CLUSTER:
            continue
        if command == "up" and options.cluster is None:
            raise UsageError(
                "a cluster that is started in a terminal needs a name: add `--cluster NAME`."
            )
        if command in SCRIPT_COMMANDS:
            if options.options.cluster is None:
                name = _only_cluster(command, argument)
                options.options = replace(options.options, cluster=name)
        elif getattr(options, argument.field) is None:
            setattr(options, argument.field, _only_cluster(command, argument))


def _only_cluster(command: str, argument: Argument) -> str:
    rows = registry.rows()
    if len(rows) > 1:  # those that are gone wait for `jupyter sky gc`
        found = zip(rows, probe(rows, providers()), strict=True)
        rows = [row for row, each in found if each.phase is not ProbePhase.GONE]
    names = [row.name for row in rows]
    if not names:
        if command in SCRIPT_COMMANDS:
            raise UsageError("no cluster is running: add `--cluster NAME` to start one.")
        raise UsageError(NONE_RUNNING)
    if len(names) > 1:
        example = f"{argument.name} {names[0]}" if argument.is_option else names[0]
        raise UsageError(
            f"several clusters are running ({format_some(names, _LISTED)}): name one, as in "
            f"`%sky {command} {example}`."
        )
    return names[0]


def _up(context: CommandContext, options: Any) -> None:
    """Start a cluster, and say when it ends by itself: this process detaches from it at once."""
    before = registry.find(options.cluster or "")
    lifecycle.up(context, options)
    if cluster := context.session.connected(options.cluster):
        # What was left of another of its name is no cluster that is up.
        is_new = before is None or before.id != cluster.id
        what = unused_end(cluster) if is_new else f"{describe(cluster)}, up already"
        if what:
            print(f"{cluster.name}: {what}", file=sys.stderr)


def _scale(context: CommandContext, options: Namespace) -> None:
    """Scale a cluster, unless a notebook is connected to it."""
    with context.session.visit(options.cluster) as cluster:
        if cluster.shared:
            raise UsageError(
                f"a notebook is using {cluster.name}: scale it in that notebook, or with the "
                f"button in JupyterLab's sidebar."
            )
    control.scale(context, options)


def _attach(context: CommandContext, options: Namespace) -> None:
    """Show the output of a cluster's run, without taking anything from its notebook."""
    with context.session.visit(options.name) as cluster:
        name, run = cluster.name, cluster.pop_unseen_run()
        if run is None:
            logs = f"jupyter sky logs --cluster {name}"
            print(f"{name}: nothing is running; `{logs}` shows earlier output")
            return
        where = format_ranks(run.task.ranks)
        title = run.task.title or "a run"
        print(f"{name}: `{title}` on {where}; Ctrl-C leaves it running", flush=True)
        try:
            follow(
                context.shell,
                context.session.panels,
                cluster,
                run,
                leaves_on_interrupt=lambda: True,
            )
        except Interrupted:
            if run.finished:
                raise
            print(
                f"\n{name}: the run continues; `jupyter sky attach {name}` shows it again, "
                f"`jupyter sky interrupt --cluster {name}` stops it"
            )
            return
        run.check()


def _shell(context: CommandContext, options: Namespace) -> int:
    """Open a shell on the node of a rank, and return its exit status."""
    terminal.check_terminal()
    try:
        with context.session.visit(options.cluster) as cluster:
            ranks = choose_ranks(cluster, options.ranks or "head", "jupyter sky shell")
            if len(ranks) != 1:
                raise UsageError("a shell is on one node: name one rank, as in `%sky shell 3`.")
            return terminal.run_shell(cluster, ranks[0])
    except SkyError as error:
        if options.hold:
            print(f"{_for_terminal(str(error))}\n\nEnter closes this terminal.")
            sys.stdin.readline()
        raise


def _settings() -> Config:
    """Return the ``Sky`` configuration of notebooks, from IPython's files."""
    folders = [*SYSTEM_CONFIG_DIRS, *ENV_CONFIG_DIRS, Path(get_ipython_dir()) / "profile_default"]
    found = Config()
    for folder in folders:
        for name in ("ipython_config.py", "ipython_kernel_config.py"):
            with contextlib.suppress(ConfigFileNotFound):
                found.merge(PyFileConfigLoader(name, path=str(folder)).load_config())
    is_plain = not is_terminal(sys.stderr) or os.environ.get("NO_COLOR")
    return Config(
        {
            "Sky": found.Sky,
            "HistoryManager": {"enabled": False},
            # Do not write colours to files and programs, or where nobody wants them (no-color.org).
            "InteractiveShell": {"colors": "nocolor"} if is_plain else {},
        }
    )


def _overview() -> str:
    commands = "".join(
        f"  {name:<12}{help}\n"
        for name, (help, _) in COMMANDS.items()
        if name not in NOTEBOOK_COMMANDS
    )
    return (
        "usage: jupyter sky COMMAND [options]\n\n"
        f"The clusters of your notebooks, in a terminal.\n\n{commands}\n"
        "`jupyter sky COMMAND -h` shows its options."
    )


def _for_terminal(text: str) -> str:
    """Return a text with the commands of a notebook, like ``%sky down``, as a terminal has them."""
    up = "`jupyter sky up --cluster NAME --nodes 4`"
    text = text.replace(STARTED_BY, up).replace(f"{RUN_AGAIN}{RESTARTS_TOO}", RUN_AGAIN)
    text = text.replace(RUN_AGAIN, f"To start a new one, say where and how large, as in {up}")
    return as_in_command(text)


@contextlib.contextmanager
def _in_words_of_a_terminal() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(_TerminalStream(sys.stdout)),
        contextlib.redirect_stderr(_TerminalStream(sys.stderr)),
    ):
        yield


class _TerminalStream:
    """A stream that rewrites notebook commands for a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_for_terminal(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
