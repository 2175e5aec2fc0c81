"""Installs packages on all nodes of a running cluster, in parallel."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_list, plain, without_secrets
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.packages import as_sent, check_secrets, package_name, sources
from jupyter_sky.providers.progress import Preparation, Step
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.setup.packages import git_logins
from jupyter_sky.providers.ssh.setup.packages.uv import uv_program
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS, InstallAnswer, WheelBlob
from jupyter_sky.transport.tasks import BackgroundTasks, blocking, shielded

_ASK_EVERY = 0.5  # seconds
_UNDONE_WITHIN = 2.0  # seconds; a node without a link hears of it later
_ONGOING = 0.5  # fraction of a node's bar while it installs


@dataclass(frozen=True)
class _Files:
    """Files for nodes, ready to be sent."""

    by_name: Mapping[str, WheelBlob]
    blobs: Mapping[str, memoryview]


async def install(
    connections: Sequence[Connection],
    requirements: Sequence[str],
    image: Image,
    progress: Progress,
    asked: Sequence[str] = (),
) -> list[str]:
    """Install packages on nodes, beside those in the environment of their ranks.

    Parameters
    ----------
    connections
        The connections to the nodes' agents.
    requirements
        All requirements added to the cluster, in pip's syntax.
    image
        Names the indexes.
    progress
        Called with the progress on each node.
    asked
        The requirements to name in errors; by default, all of them.

    Returns
    -------
    list of str
        Name and version of each package that is new on some node.

    Raises
    ------
    SkyError
        If they cannot be installed on some node; all nodes are then as they were.
    """
    installation = _Installation(connections, progress)
    try:
        request, files = await _request(requirements, image)
        await broadcast.send(files, connections)
        answers = await installation.carry_out(request)
        _check(answers, asked or requirements)
    except BaseException:
        await shielded(installation.end("stop_install", _UNDONE_WITHIN))
        raise
    await installation.end("keep_install", 0.0)
    return sorted({each for answer in answers.values() for each in answer["installed"]})


async def _request(
    requirements: Sequence[str], image: Image
) -> tuple[dict[str, Any], Mapping[str, memoryview]]:
    """Return the request to nodes, and the files that they need for it."""
    check_secrets(requirements)
    logins: dict[str, str] = {}
    # Others of the image were installed when its environment was made, or replaced since.
    chosen = [each for each in image.wheels if _is_wanted(Path(each), requirements)]
    wanted = [git_logins.without_logins(each, logins) for each in as_sent(requirements, chosen)]
    found = await blocking(sources, image)
    paths = [*found.wheels, *map(Path, chosen)]
    wheels = await blocking(_read, {path.name: path for path in paths})
    options = ["--no-index"] if found.no_index else []
    options += ["--find-links", SENT_WHEELS] if found.wheels else []
    request = {
        "requirements": wanted,
        "settings": found.settings,
        "options": options,
        "wheels": wheels.by_name,
        "env": git_logins.variables(logins),
        "uv": None,
    }
    return request, wheels.blobs


def _is_wanted(wheel: Path, requirements: Sequence[str]) -> bool:
    name, version = wheel.name.split("-")[:2]
    pins = (each.partition(";")[0].strip() for each in requirements)
    return any(
        package_name(pin) == package_name(name) and pin.endswith(f"=={version}") for pin in pins
    )


def _check(answers: Mapping[Connection, InstallAnswer], wanted: Sequence[str]) -> None:
    """Raise the errors of nodes, combined."""
    troubles: dict[str, list[str]] = {}
    for connection, answer in answers.items():
        if trouble := answer["trouble"]:
            troubles.setdefault(trouble, []).append(connection.name)
    if not troubles:
        return
    trouble, names = next(iter(troubles.items()))
    what = without_secrets(", ".join(wanted))
    where = "" if len(names) == len(answers) else f" on {format_list(names)}"
    raise SkyError(
        f"{what} could not be installed{where}, and nothing was changed: "
        f"{without_secrets(trouble)}."
    )


_ending = BackgroundTasks()


class _Installation:
    """An installation on several nodes."""

    def __init__(self, connections: Sequence[Connection], progress: Progress) -> None:
        self._connections = connections
        self._steps = {each: Step(each.name, "resolving") for each in connections}
        self._progress = progress
        self._name = uuid.uuid4().hex

    async def carry_out(self, request: dict[str, Any]) -> dict[Connection, InstallAnswer]:
        """Install on all nodes, and return the result of each."""
        request = {**request, "installation": self._name}
        answers = await self._install(self._connections, request)
        machines: dict[str, list[Connection]] = {}
        for connection, answer in answers.items():
            if kind := answer["lacks"]:
                machines.setdefault(kind, []).append(connection)
        for kind, lacking in machines.items():
            uv = await _uv(lacking, kind)
            answers |= await self._install(lacking, {**request, "uv": uv})
        return answers

    async def end(self, how: str, within: float) -> None:
        """Have all nodes keep or undo it; those that do not answer hear of that later."""
        telling = {
            _ending.spawn(request_quietly(each, how, installation=self._name)): each
            for each in self._connections
        }
        _, waiting = await asyncio.wait(telling, timeout=within)
        for each in waiting if how == "stop_install" else ():
            self._say(telling[each], "stops when it answers again", _ONGOING, failed=True)

    async def _install(
        self, connections: Sequence[Connection], request: dict[str, Any]
    ) -> dict[Connection, InstallAnswer]:
        answers = await asyncio.gather(*(self._install_on(each, request) for each in connections))
        return dict(zip(connections, answers, strict=True))

    async def _install_on(self, connection: Connection, request: dict[str, Any]) -> InstallAnswer:
        watching = asyncio.ensure_future(self._watch(connection))
        try:
            said = await connection.request("install", within=None, link_within=None, **request)
        finally:
            watching.cancel()
        answer = cast(InstallAnswer, said)
        if answer["trouble"]:
            self._say(connection, answer["trouble"], _ONGOING, failed=True)
        elif not answer["lacks"]:
            self._say(connection, "installed", 1.0)
        return answer

    async def _watch(self, connection: Connection) -> None:
        """Show uv's output on a node, until cancelled."""
        while True:
            await asyncio.sleep(_ASK_EVERY)
            with contextlib.suppress(SkyError):
                line = (await connection.request("installing"))["line"]
                if line:
                    self._say(connection, line, _ONGOING)

    def _say(self, connection: Connection, text: str, share: float, failed: bool = False) -> None:
        step = Step(connection.name, plain(without_secrets(text)), share, failed)
        if self._steps[connection] != step:
            self._steps[connection] = step
            several = len(self._steps) > 1
            self._progress(Preparation(tuple(self._steps.values())) if several else step.text)


async def _uv(connections: Sequence[Connection], machine: str) -> WheelBlob:
    """Send uv to nodes without it: it is sent once, and passed on between nodes."""
    try:
        program = await blocking(uv_program, machine)
    except SkyError as error:
        raise SkyError(f"{connections[0].name}: {error}.") from None
    uv = await blocking(_read, {"uv": program})
    await broadcast.send(uv.blobs, connections)
    return uv.by_name["uv"]


def _read(paths: Mapping[str, Path]) -> _Files:
    """Map files, so that they do not take up memory."""
    by_name: dict[str, WheelBlob] = {}
    found: dict[str, memoryview] = {}
    for name, path in paths.items():
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        key = blobs.digest(content)
        by_name[name] = {"blob": key, "size": content.nbytes}
        found[key] = content
    return _Files(by_name, found)
