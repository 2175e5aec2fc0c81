"""Installs packages for the ranks of a node, with uv, while they are running."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.packages import overlay
from jupyter_sky.serialization.blobs import file_name
from jupyter_sky.serialization.imported_versions import normal_name
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import (
    SENT_WHEELS,
    EndInstallRequest,
    Handlers,
    InstallAnswer,
    InstallRequest,
)

_ROOT = 0
_LINE = 300  # most characters of uv's output to show
_GONE = (
    "somebody has removed {folder}, where a cluster has its packages: end it with `%sky down`, and "
    "start it again"
)

# Of an address, uv knows no version before it has installed it.
_WANTED = re.compile(r"^ \+ (\S+?)(?:==(\S+))?(?: @ (.+)| \(from (.+)\))?$")
_ADDED = re.compile(r"^ \+ (\S+?)==(\S+)(?: \(from .+\))?$")


# Packages with their versions, and the blob of the wheel if it was sent: one that was built again
# has the same version.
_Present = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class _Done:
    """The last installation that was carried out, and what there was before it."""

    name: str
    folder: Path | None
    present: _Present


class PackageInstaller:
    """Installs packages beside the environment of a node's ranks, one request at a time.

    An installation is one of all nodes of a cluster, and has a name: what this node has not begun
    yet, or has done already, can be stopped as well where another node fails or the user stops it.

    Parameters
    ----------
    folder
        The agent's folder.
    store
        The blobs of this node, including wheels that were sent.
    has_others
        Returns whether notebooks are connected besides the one that asks.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, folder: Path, store: BlobStore, has_others: Callable[[], bool]) -> None:
        self._folder = folder
        self._store = store
        self._has_others = has_others
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._current = ""
        self._done: _Done | None = None
        self._stopped: set[str] = set()
        self._is_ended = False
        self._present: _Present = frozenset()
        self._line = ""
        self.handlers: Handlers = {
            "install": self._on_install,
            "installing": lambda request: {"line": self._line},
            "stop_install": self._on_stop,
            "keep_install": self._on_keep,
        }

    async def _on_install(self, request: InstallRequest) -> InstallAnswer | Message:
        sent = [*request["wheels"].values(), *([request["uv"]] if request["uv"] else [])]
        if missing := [each["blob"] for each in sent if each["blob"] not in self._store]:
            return {"error": f"{len(missing)} files did not arrive"}
        return await self.install(request)

    def _on_stop(self, request: EndInstallRequest) -> Message:
        self.stop(request["installation"])
        return {}

    def _on_keep(self, request: EndInstallRequest) -> Message:
        self.keep(request["installation"])
        return {}

    async def install(self, request: InstallRequest) -> InstallAnswer:
        """Make requirements importable, beside the packages in the environment of the ranks.

        If this fails, the previous packages stay. One that was begun before goes on first, unless
        its notebook is gone, as when its kernel was killed.
        """
        if self._current and not self._has_others():
            self.stop(self._current)
        async with self._turn:
            self._current, self._line = request["installation"], "resolving"
            try:
                return await self._install_into_new(request)
            except _Failed as failed:
                return _answer(trouble=str(failed))
            except OSError as error:
                if not self._folder.exists():
                    return _answer(trouble=_GONE.format(folder=self._folder))
                return _answer(trouble=f"{error.strerror or error}")
            finally:
                self._current = self._line = ""

    async def _install_into_new(self, request: InstallRequest) -> InstallAnswer:
        uv = _find_uv(self._program(request))
        if uv is None:
            return _answer(lacks=platform.machine())
        overlay.prepare(self._folder)
        new, wheels = overlay.new_folder(self._folder), self._wheels_folder(request)
        try:
            # In a thread, since CUDA's wheels have gigabytes and links have to be answered in time.
            await asyncio.to_thread(self._copy_wheels, request, wheels)
            return await self._install(uv, request, new, wheels)
        finally:
            overlay.remove(wheels)
            if overlay.link(self._folder).resolve() != new.resolve():
                overlay.remove(new)

    def stop(self, name: str) -> None:
        """End an installation, also one that begins later; undo one that was carried out."""
        self._stopped.add(name)
        if name == self._current:
            self._kill()
        elif self._done and self._done.name == name:
            if self._done.folder is not None:
                overlay.remove(overlay.switch(self._folder, self._done.folder))
            self._present, self._done = self._done.present, None

    def keep(self, name: str) -> None:
        """Remove what could undo an installation: all nodes have carried it out."""
        if self._done and self._done.name == name:
            overlay.remove(self._done.folder)
            self._done = None

    def end(self) -> None:
        """End what is in progress: the node ends."""
        self._is_ended = True
        self._kill()

    @property
    def _is_stopped(self) -> bool:
        return self._is_ended or self._current in self._stopped

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _install(
        self, uv: str, request: InstallRequest, new: Path, wheels: Path
    ) -> InstallAnswer:
        project = new / "pyproject.toml"
        options = [each.replace(SENT_WHEELS, str(wheels)) for each in request["options"]]
        source = ["-r", str(project), "--python", sys.executable, *options]
        sent = quote(str(wheels))
        asked = [each.replace(SENT_WHEELS, sent) for each in request["requirements"]]
        project.write_text(_project(asked, request["settings"]))
        # Packages that the environment has in a suitable version are not installed again. Nothing
        # is changed there, so it may be managed by the system's own installer.
        said = await self._run(
            [uv, "pip", "install", "--dry-run", "--break-system-packages", *source],
            request["env"],
            new,
        )
        found = [match.groups() for line in said if (match := _WANTED.match(line))]
        said = []
        if found:
            pinned = [
                f"{name} @ {at or origin}" if at or origin else f"{name}=={version}"
                for name, version, at, origin in found
            ]
            project.write_text(_project(pinned, request["settings"]))
            self._line = f"installing {len(found)} packages"
            said = await self._run(
                [uv, "pip", "install", "--no-deps", "--target", str(new), *source],
                request["env"],
                new,
            )
        project.unlink()
        if self._is_stopped:
            raise _Failed("it was stopped")
        if self._done:
            overlay.remove(self._done.folder)
        former = overlay.switch(self._folder, new)
        self._done = _Done(request["installation"], former, self._present)
        added_now = [match.groups() for line in said if (match := _ADDED.match(line))]
        blobs = {
            normal_name("-".join(name.split("-")[:2])): each["blob"]
            for name, each in request["wheels"].items()
        }
        present = frozenset(
            (f"{name}=={version}", blobs.get(normal_name(f"{name}-{version}"), ""))
            for name, version in added_now
        )
        added, self._present = sorted(name for name, _ in present - self._present), present
        return _answer(installed=added)

    def _program(self, request: InstallRequest) -> Path | None:
        """Return the path of uv, if it was sent: as the host was set up, or to this cluster."""
        cache = _cache()
        kept = (cache if _is_own(cache) else self._folder) / "bin"
        kept /= f"uv-{platform.machine()}"  # as setup names it: see `HostFacts.sent_uv`
        if request["uv"] is not None and not kept.exists():
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = kept.with_name(f"uv.{os.getpid()}.part")
            shutil.copyfile(self._store.folder / file_name(request["uv"]["blob"]), part)
            part.chmod(0o700)
            part.replace(kept)
        return kept if kept.exists() else None

    def _wheels_folder(self, request: InstallRequest) -> Path:
        """Return the folder for the wheels that were sent; the same for the same ones."""
        # uv identifies a wheel by its path, and a rebuilt one has the same name.
        told = json.dumps(sorted((n, each["blob"]) for n, each in request["wheels"].items()))
        mark = hashlib.sha256(told.encode()).hexdigest()[:16]
        return self._folder / "packages" / f"wheels-{mark}"

    def _copy_wheels(self, request: InstallRequest, wheels: Path) -> None:
        """Put the wheels that were sent into a folder, by their names."""
        wheels.mkdir(mode=0o700, exist_ok=True)
        for name, blob in request["wheels"].items():
            shutil.copyfile(
                self._store.folder / file_name(blob["blob"]), wheels / PurePath(name).name
            )

    async def _run(self, words: Sequence[str], env: dict[str, str], folder: Path) -> list[str]:
        """Run uv in the folder of the project file that names its indexes; return its output.

        Raises
        ------
        _Failed
            If it fails, with its error message.
        """
        if self._is_stopped:
            raise _Failed("it was stopped")
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **_QUIET, **env},
            cwd=folder,
            start_new_session=True,
            limit=2**20,
        )
        self._process = process
        if self._is_stopped:  # meanwhile
            self._kill()
        lines: list[str] = []
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            lines.append(text)
            self._line = text.strip()[:_LINE] or self._line
        status = await process.wait()
        if self._is_stopped:
            raise _Failed("it was stopped")
        if status:
            raise _Failed(what_failed(lines) or f"uv ended with exit status {status}")
        return lines


class _Failed(Exception):
    """uv has failed or was stopped; the message says how."""


_QUIET = {"NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_NO_WRAP": "1"}
_CAUSE = re.compile(r"^\s*(?:×|[├╰]─▶|error:|cause:|Caused by:)\s*")
_IS_FULL = re.compile(r"(?: to| file) `?(/[^`]+?)`?: No space left on device")
_NOTHING = ("hint:", "[std", "Using Python", "Resolved", "Prepared")


def what_failed(lines: Sequence[str]) -> str:
    """Return uv's error message, in one line.

    uv names what it could not do and then the causes, the last of which is the most specific; if
    the output of a build follows, its last line is. A cause between them says which index it is.
    """
    causes: list[str] = []
    output: list[str] = []
    for line in lines:
        if _CAUSE.match(line):
            causes.append(_CAUSE.sub("", line))
            output.clear()
        elif line.startswith("hint:"):
            break
        elif (text := line.strip()) and not text.startswith(_NOTHING):
            output.append(text)
    last = output[-1:] or causes[1:][-1:]
    if full := _IS_FULL.search(": ".join(last)):
        last = [f"the disk at {_mount_point(Path(full[1]))} is full"]
    asked = [each for each in causes[1:-1] if each.startswith("Failed to fetch")][:1]
    return ": ".join(part.rstrip(":. ") for part in [*causes[:1], *asked, *last])[:_LINE]


def _mount_point(path: Path) -> Path:
    """Return the path of a file system, as `df` names it."""
    return next(each for each in path.parents if each.is_mount())


def _answer(
    installed: Sequence[str] = (), trouble: str = "", lacks: str | None = None
) -> InstallAnswer:
    return {"installed": list(installed), "trouble": trouble, "lacks": lacks}


def _project(requirements: Sequence[str], settings: str) -> str:
    lines = ["[project]", 'name = "node"', 'version = "0"', "dependencies = ["]
    lines += [f"    {json.dumps(each)}," for each in requirements]
    return "\n".join([*lines, "]", settings])


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "jupyter-sky"


def _is_own(cache: Path) -> bool:
    """Return whether nobody else can change what is in our folder of the cache; make it before."""
    with contextlib.suppress(OSError):
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        above, own = cache.parent.stat(), cache.lstat()
        is_kept = above.st_uid in (os.getuid(), _ROOT) and (
            not above.st_mode & stat.S_IWOTH or above.st_mode & stat.S_ISVTX
        )
        return bool(is_kept) and own.st_uid == os.getuid() and not cache.stat().st_mode & 0o002
    return False


def _find_uv(sent: Path | None) -> str | None:
    """Return the path of uv: beside Python, where its installer puts it, or where we put it."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    places += [str(Path.home() / ".local" / "bin"), str(Path.home() / ".cargo" / "bin")]
    found = shutil.which("uv", path=os.pathsep.join(places))
    return found or (str(sent) if sent else None)
