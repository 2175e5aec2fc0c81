"""Two users of one Slurm cluster: real ones, each with a home and IPython in a terminal.

They are users of this machine in a mount namespace alone, where Slurm runs as well: nothing of them
is left in ``/etc/passwd``, however a test ends. There everybody can enter the folders on the way to
the interpreter and the code, which may lie in a home that is closed to others.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from jupyter_sky.providers.node_defaults import SHARED_MEMORY
from tests.paths import ROOT
from tests.providers.slurm.controller import real_slurm
from tests.waiting import until

_END = "~ end of a cell ~"
_IPYTHON = ("-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor")


@dataclass
class User:
    """A user of the machine, at a terminal.

    Attributes
    ----------
    name, number, home
        What ``/etc/passwd`` says.
    inside
        The command before each command in the namespace where the user exists.
    env
        The environment variables of what the user runs.
    """

    name: str
    number: int
    home: Path
    inside: list[str]
    env: dict[str, str]
    _terminal: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return subprocess.run(
            self._command(words),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def type(self, cell: str) -> None:
        """Type a cell into IPython."""
        if not self._terminal:
            self._terminal.append(self._open())
        keyboard = self._terminal[0].stdin
        assert keyboard is not None
        keyboard.write(f"{cell}\n\n\nprint({_END!r})\n")
        keyboard.flush()

    def shown(self) -> str:
        """Return what the next cell shows, when it has ended."""
        screen = self._terminal[0].stdout
        assert screen is not None
        seen = ""
        while _END not in seen:
            line = screen.readline()
            assert line, f"IPython has ended: {seen}"
            seen += line
        return seen.replace("   ...: ", "").partition(_END)[0]

    def cell(self, text: str) -> str:
        """Type a cell, and return what it shows."""
        self.type(text)
        return self.shown()

    def processes(self) -> list[psutil.Process]:
        """Return what runs as this user."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                # What is left of one that has ended is for the first process to reap, some day.
                is_there = process.status() != psutil.STATUS_ZOMBIE
                if is_there and process.uids().real == self.number:
                    found.append(process)
        return found

    def folders(self) -> list[Path]:
        """Return what there is of the user's outside of the home."""
        places = [*Path("/tmp").glob("jupyter-sky-*"), *SHARED_MEMORY.glob("jupyter-sky-*")]
        return [path for path in places if path.lstat().st_uid == self.number]

    def leave(self) -> None:
        """End IPython, whatever it does, and what may be left of the user."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for terminal in self._terminal:
            terminal.communicate()
        until(lambda: not self.processes())
        for folder in self.folders():
            shutil.rmtree(folder)

    def _open(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command([sys.executable, *_IPYTHON]),
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _command(self, words: Sequence[str]) -> list[str]:
        alone = [f"--reuid={self.number}", f"--regid={self.number}", "--clear-groups"]
        return [*self.inside, f"--wd={self.home}", "setpriv", *alone, *words]


@contextlib.contextmanager
def two_users(**env: str) -> Iterator[tuple[User, User]]:
    """Run Slurm for two users; the first one has further environment variables."""
    if (
        os.getuid()
        or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    ):
        pytest.skip("two users need root and namespaces: run it privileged")
    folder = Path(tempfile.mkdtemp(prefix="sky-users-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        # Apart from those of other tests that run at the same time.
        first = random.SystemRandom().randrange(50_000, 60_000, 2)
        numbers = {"sky-ada": first, "sky-bob": first + 1}
        inside = stack.enter_context(_namespace(folder, numbers))
        stack.enter_context(real_slurm(inside=inside))
        users = []
        for name, number in numbers.items():
            home = folder / name
            home.mkdir()
            home.chmod(0o755)  # as homes are in many places
            os.chown(home, number, number)
            user = User(name, number, home, inside, _environment(name, home))
            stack.callback(user.leave)
            users.append(user)
        ada, bob = users
        ada.env |= env
        said = bob.run(sys.executable, "-c", "import jupyter_sky, msgpack").stdout
        if "PermissionError" in said or "Permission denied" in said:
            pytest.skip(f"others cannot read the checkout, chmod -R o+rX does it: {said}")
        yield ada, bob


def _environment(name: str, home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "USER": name,
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "passive",
        "SLURM_CONF": os.environ["SLURM_CONF"],
    }


@contextlib.contextmanager
def _namespace(folder: Path, users: dict[str, int]) -> Iterator[list[str]]:
    """Make a mount namespace where these users exist; the command before a command in it."""
    commands = ["set -e"]
    for file in ("passwd", "group"):
        lines = [Path("/etc", file).read_text().rstrip("\n")]
        for name, number in users.items():
            more = f":{number}::{folder / name}:/bin/sh" if file == "passwd" else ":"
            lines.append(f"{name}:x:{number}{more}")
        (folder / file).write_text("\n".join([*lines, ""]))
        commands.append(shlex.join(["mount", "--bind", str(folder / file), f"/etc/{file}"]))
    ready = folder / "ready"
    commands += [*_openings(folder), f"touch {ready}", "exec sleep infinity"]
    keeper = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "\n".join(commands)], stdin=subprocess.DEVNULL
    )
    try:
        until(lambda: ready.exists() or keeper.poll() is not None)
        assert keeper.poll() is None, "there is no namespace"
        yield ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt"]
    finally:
        keeper.kill()
        keeper.wait()


def _openings(folder: Path) -> Iterator[str]:
    """Yield commands that put other folders over those on the way that others may not enter."""
    closed: dict[Path, list[Path]] = defaultdict(list)
    for path in {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT.resolve()}:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                closed[parent].append(path)
                break
    for number, (parent, paths) in enumerate(closed.items()):
        kept = [folder / f"kept-{number}-{each}" for each in range(len(paths))]
        for path, place in zip(paths, kept, strict=True):
            yield shlex.join(["mkdir", str(place)])
            yield shlex.join(["mount", "--bind", str(path), str(place)])
        yield shlex.join(["mount", "-t", "tmpfs", "-o", "mode=755", "sky", str(parent)])
        for path, place in zip(paths, kept, strict=True):
            yield shlex.join(["mkdir", "-p", str(path)])
            yield shlex.join(["mount", "--bind", str(place), str(path)])
