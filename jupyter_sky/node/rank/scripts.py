"""A script beside a rank: bash in its own process, with everything that it starts.

What is wanted: a script runs like the user's code. Its output is the rank's output, its exit status
decides how the rank's part ends, Stop ends it with everything that it has started, and no process
is left when it is over.

What does not work:

- Signalling its process group. Processes of torchrun are in sessions of their own, and so are
  daemons, which are no longer even descendants.
- Waiting with `subprocess.Popen.wait`. After an interrupt it waits for the child by itself, before
  the child was told.

The solution: each process of a script inherits an environment variable that names the run, by which
it is found among the descendants of the node's fork server, which adopts orphans. Those of another
user, as after `sudo`, do not show their environment: they are found if they are in the script's
session, and can only be named. Stop is a ladder, faster than that of the agent (`supervisor.stop`),
which would end the rank as well: SIGINT for the script, as from a terminal; then SIGTERM and
SIGKILL for all processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from jupyter_sky.errors import ScriptFailed, SkyError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.node import started_processes
from jupyter_sky.node.blobs import sent_folders
from jupyter_sky.node.rank import env_vars, streams
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import working_folder
from jupyter_sky.node.rank.metrics.script_feed import ScriptFeed, Take
from jupyter_sky.paths import command_path
from jupyter_sky.serialization.process.rank_variables import for_others
from jupyter_sky.transport.metrics import script_metrics
from jupyter_sky.transport.protocol.messages import Script
from jupyter_sky.transport.protocol.rank_messages import RunCommand
from jupyter_sky.transport.protocol.topology import Topology
from jupyter_sky.transport.rank_ranges import ranks_of

_SCRIPT_OF = "JUPYTER_SKY_SCRIPT"
"""The variable that tells which run, and which rank's part of it, a process belongs to."""

# Fractions of the time after which the agent kills the rank.
_SIGTERM_AFTER, _SIGKILL_AFTER = 0.4, 0.8

_MOMENT = 0.05  # seconds

_GRACE = 0.3
"""Seconds in which what a script has left may end by itself, before anything is said of it."""

_ROUNDS = 5

# These describe the rank itself, or are of no use outside it.
_OF_THE_RANK = {
    "COMPUTE_POOL",
    "GROUP_RANK",
    "JUPYTER_SKY_FOLDER",
    "JUPYTER_SKY_HEAD_FD",
    "JUPYTER_SKY_LOG_FD",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "RANK",
    "WORLD_SIZE",
}
_INLINE_FIGURES = "module://matplotlib_inline.backend_inline"


@dataclass(frozen=True)
class ScriptPlace:
    """Where a script runs.

    Attributes
    ----------
    topology
        The nodes of the cluster.
    rank
        The rank beside which it runs.
    begun_in
        The folder that ranks of this node start in.
    store
        The folder of this node's blobs, in which files can be created.
    log
        Receives the metrics of its processes.
    """

    topology: Topology
    rank: int
    begun_in: Path
    store: Path
    log: Take


def run(command: RunCommand, place: ScriptPlace, interrupts: Interrupts) -> None:
    """Run the script of a command, and return once none of its processes is left.

    Parameters
    ----------
    command
        The command.
    place
        Where it runs.
    interrupts
        The interrupts of this process.

    Raises
    ------
    ScriptFailed
        If it ends with an exit status other than 0.
    SkyError
        If this node cannot provide what it needs.
    KeyboardInterrupt
        If it was stopped.
    """
    script = command["script"]
    assert script is not None
    for folder in script["folders"]:
        sent_folders.write_folder(folder, place.begun_in, place.store)
    working_folder.find_again()
    cwd = None if script["cwd"] is None else place.begun_in / script["cwd"]
    env = _environment(command, script, place.topology, place.rank)
    name = f"{command['run']}-{place.rank}"
    file = place.store / f"{name}.sh"
    started = _StartedScript(env[_SCRIPT_OF], command["deadline"])
    feed = ScriptFeed(place.store / f"{name}.metrics", place.log)
    try:
        interrupts.run_protected(_write, file, script["text"])
        interrupts.run_protected(feed.begin)
        feeding = {script_metrics.PATH: str(feed.path)}
        interrupts.run_protected(started.start, [_shell(), str(file)], env | feeding, cwd)
        started.wait()
    except BaseException:
        interrupts.run_protected(started.stop)
        raise
    finally:
        interrupts.run_protected(_clean_up, started, feed, file)
    started.check()


def _clean_up(started: _StartedScript, feed: ScriptFeed, file: Path) -> None:
    try:
        started.end_rest()
    finally:
        try:
            feed.end()
        finally:
            file.unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    # Not as an argument, which everyone on the node could read.
    file.touch(0o600, exist_ok=False)
    file.write_text(text, "utf-8")


def _shell() -> str:
    return shutil.which("bash") or "/bin/sh"


def _environment(
    command: RunCommand, script: Script, topology: Topology, rank: int
) -> dict[str, str]:
    env = {name: value for name, value in for_others().items() if name not in _OF_THE_RANK}
    if env.get("MPLBACKEND") == _INLINE_FIGURES:
        del env["MPLBACKEND"]
    # So that output of Python programs shows at once, as in a terminal.
    env.setdefault("PYTHONUNBUFFERED", "1")
    env["PATH"] = command_path(env)  # also if the user has chosen one
    if command["gpus"] is not None:
        env["CUDA_VISIBLE_DEVICES"] = command["gpus"]
    found = env_vars.script_variables(topology, rank, ranks_of(command["everyone"]), script["port"])
    found["SKYPILOT_TASK_ID"] += f"-{command['run']}"
    chosen = {name: env[name] for name in found if name.endswith("_IFNAME") and name in env}
    of = {_SCRIPT_OF: f"{command['run']}/{rank}"}
    return {**env, **found, **chosen, **script["env"], **of}


class _StartedScript:
    """The processes of a script.

    Parameters
    ----------
    mark
        The value of `_SCRIPT_OF` in its environment.
    deadline
        Seconds after Stop after which the agent kills the rank.
    """

    def __init__(self, mark: str, deadline: float) -> None:
        self._mark = mark
        self._deadline = deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._had_sigterm = False

    def start(self, words: Sequence[str], env: dict[str, str], cwd: Path | None) -> None:
        """Start it."""
        streams.flush()
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, start_new_session=True, env=env, cwd=cwd
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise SkyError(_too_large(env)) from None

    def wait(self) -> None:
        """Wait until the script itself has ended; raise an interrupt at once."""
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def stop(self) -> None:
        """End the script and everything that it has started."""
        if self._process is None or self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGINT)
        if self._has_ended(_SIGTERM_AFTER * self._deadline):
            return
        self._had_sigterm = True
        for each in self._processes():
            _signal(each, signal.SIGTERM)
        if not self._has_ended((_SIGKILL_AFTER - _SIGTERM_AFTER) * self._deadline):
            with contextlib.suppress(PermissionError):  # then it goes on: `end_rest` says so
                self._process.kill()
                self._process.wait()

    def end_rest(self) -> None:
        """End processes that the script has left, and report which."""
        if self._process is None or not (left := self._processes()):
            return
        if not self._had_sigterm:
            _, left = psutil.wait_procs(left, timeout=_GRACE)
            names = {each: _name(each) for each in left}
            left = [each for each in left if _signal(each, signal.SIGTERM)]
            psutil.wait_procs(left, timeout=_GRACE)
            if left:
                text = "ended with the script, which had left them running: "
                sys.stderr.write(f"{text}{', '.join(sorted({names[each] for each in left}))}\n")
        for _ in range(_ROUNDS):  # including those started meanwhile
            left = [each for each in self._processes() if _signal(each, signal.SIGKILL)]
            if not left:
                break
            psutil.wait_procs(left, timeout=_GRACE)
        _, left = psutil.wait_procs(self._processes(), timeout=_GRACE)
        if others := [each for each in left if not _signal(each, signal.SIGKILL)]:
            sys.stderr.write(_not_ended(others))

    def check(self) -> None:
        """Raise `ScriptFailed` if it did not end well."""
        assert self._process is not None
        status = self._process.wait()
        if status:
            raise ScriptFailed(*_what_happened(status))

    def _has_ended(self, within: float) -> bool:
        """Wait at most so many seconds for its end; return whether it has ended.

        Moments are counted, and not what the clock says: where the node stood still, the script has
        had none of that time either, and may be saving something.
        """
        assert self._process is not None
        for _ in range(max(1, round(within / _MOMENT))):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_MOMENT)
                return True
        return False

    def _processes(self) -> list[psutil.Process]:
        """Return the remaining processes, including those in other sessions."""
        return [*started_processes.find(self._is_ours, below=os.getppid())]

    def _is_ours(self, process: psutil.Process) -> bool:
        assert self._process is not None
        in_session = os.getsid(process.pid) == self._process.pid
        is_ours = in_session or process.environ().get(_SCRIPT_OF) == self._mark
        return bool(is_ours and process.status() != psutil.STATUS_ZOMBIE)


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Signal a process; return ``False`` if it is another user's."""
    try:
        process.send_signal(number)
    except psutil.AccessDenied:
        return False
    except psutil.Error:
        pass
    return True


def _not_ended(left: Sequence[psutil.Process]) -> str:
    names = ", ".join(f"{_name(each)} ({each.pid})" for each in left)
    pids = " ".join(str(each.pid) for each in left)
    return (
        f"still running after the script, as another user: {names}; run `sudo kill {pids}` on the "
        "node to end this.\n"
    )


def _too_large(env: Mapping[str, str]) -> str:
    name, value = max(env.items(), key=lambda item: len(item[1]))
    return (
        "the script was not started, as its environment is larger than this system allows: "
        f"{name} has {format_bytes(len(os.fsencode(value)))}; put it into a file, and `del "
        f"os.environ[{name!r}]`."
    )


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return "a process"


def _what_happened(status: int) -> tuple[str, int]:
    """Describe an exit status of `subprocess`, and return it as a shell reports it."""
    if status < 0:
        name = _signal_name(-status)
        return f"the script was killed by {name}", 128 - status
    # A shell reports that a command was.
    by = f" (a command was killed by {_signal_name(status - 128)})" if 128 < status < 165 else ""
    return f"the script ended with exit status {status}{by}", status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
