"""Runs actions of the sidebar: in the kernel that is connected to a cluster, or by the CLI.

The connected kernel is preferred, because its notebook shows the user what happens. If no kernel is
connected, or it hangs, ``jupyter sky`` asks the cluster's agents.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.errors import SkyError
from jupyter_sky.server import cli_process, kernel_client
from jupyter_sky.server.cluster_list import NO_CLUSTER, ClusterInventory
from jupyter_sky.server.kernel_client import NoAnswer
from jupyter_sky.server.kernel_reports import CheckedReport, KernelReports
from jupyter_sky.server.schema import check

_ANSWER_WITHIN = 3600.0
"""Seconds for a kernel to answer what only reads: many ranks may have a lot to tell."""

_REPLY_WITHIN = 30.0
"""Seconds after which a page gets an answer, done or not: proxies cut requests that stay open."""

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""What a cluster can be called."""


class ClusterActions:
    """Runs actions on clusters, and keeps the errors that no page was told of.

    Parameters
    ----------
    reports
        Tells which kernels are connected to a cluster, and how to reach them.
    """

    def __init__(self, reports: KernelReports) -> None:
        self._reports = reports
        self._tasks: set[asyncio.Task[str]] = set()
        self._failures: dict[str, str] = {}

    async def run(
        self, inventory: ClusterInventory, identity: str, action: str, options: Mapping[str, Any]
    ) -> str:
        """Run an action on a cluster, and return a sentence about the result.

        It continues after `_REPLY_WITHIN` seconds, and even if the page is closed.

        Parameters
        ----------
        inventory
            The present clusters.
        identity
            The id of the cluster.
        action
            ``interrupt``, ``where``, ``restart``, ``scale``, ``stop``, ``start`` or ``down``.
        options
            The body of the request, like ``{"nodes": 4}``.

        Raises
        ------
        SkyError
            If it fails.
        """
        row = inventory.row(identity)
        name = row.name if row else identity
        task = asyncio.create_task(self._execute(inventory, identity, action, options))
        self._tasks.add(task)  # the loop has only weak references to tasks
        task.add_done_callback(self._tasks.discard)
        self._failures.pop(identity, None)
        done, _ = await asyncio.wait({task}, timeout=_REPLY_WITHIN)
        if done:
            return task.result()
        task.add_done_callback(partial(self._finished_late, identity, action))
        return f"{name}: {action} is taking a while, and continues in the background"

    async def foresee_stop(self, inventory: ClusterInventory, identity: str) -> str:
        """Return a sentence about what stopping the machines of a cluster would lose and cost.

        Raises
        ------
        SkyError
            If they cannot be stopped, or that is not known in time. The error is not recorded,
            since nothing was to be done yet.
        """
        asked = self._execute(inventory, identity, "stop", {"dry_run": True})
        try:
            return await asyncio.wait_for(asked, _REPLY_WITHIN)
        except TimeoutError:
            raise SkyError(
                "what a stop would cost is not known yet, and nothing was stopped: try again later."
            ) from None

    async def record(
        self, inventory: ClusterInventory, identity: str, run: str
    ) -> Mapping[str, Any] | None:
        """Return a `Record` of the schema: the state of a run, or how it ended.

        ``None`` if no live kernel knows the run, or its answer cannot be shown.

        Raises
        ------
        NoAnswer
            If a kernel that may know it does not answer.
        """
        message = {"action": "record", "cluster": identity, "run": run}
        silent: NoAnswer | None = None
        for report in inventory.live_reports(identity):
            try:
                return await self._answer(report, message, "Record")
            except NoAnswer as error:
                silent = silent or error
            except SkyError:
                pass  # it does not know the run, or says something else
        if silent:
            raise silent
        return None

    async def runs(
        self, inventory: ClusterInventory, identity: str, kernel: str = ""
    ) -> Mapping[str, Any]:
        """Return the `Runs` of the schema: those of one kernel, or of all that are connected."""
        message = {"action": "runs", "cluster": identity}
        ended: list[Any] = []
        for report in inventory.live_reports(identity):
            if kernel in ("", report.kernel.kernel):
                with contextlib.suppress(SkyError):
                    ended += (await self._answer(report, message, "Runs"))["ended"]
        return {"ended": ended}

    async def ask(
        self, inventory: ClusterInventory, identity: str, question: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the answer to a page's question: a `History`, `Variables` or a `Profile`.

        Raises
        ------
        SkyError
            If no kernel is connected to the cluster, or with the kernel's own sentence.
        """
        message = {"action": "ask", "cluster": identity, "question": dict(question)}
        trouble = SkyError("no notebook is connected to this cluster: attach it first.")
        for report in inventory.live_reports(identity):
            try:
                return await self._answer(report, message, str(question["about"]).title())
            except SkyError as error:
                trouble = error
        raise trouble

    async def _answer(
        self, report: CheckedReport, message: Mapping[str, Any], definition: str
    ) -> Mapping[str, Any]:
        """Return a kernel's answer to what only reads; it matches a definition of the schema.

        Raises
        ------
        SkyError
            With the kernel's own sentence, or if it answers with something else.
        """
        file = self._reports.connection_file(report.kernel.kernel)
        said = await kernel_client.request(report.kernel, file, message, _ANSWER_WITHIN)
        try:
            answer = json.loads(said)
            # In a thread: ten minutes of many ranks are a lot of data.
            await asyncio.to_thread(check, definition, answer)
        except (ValueError, RecursionError):
            raise SkyError("the kernel of this cluster is of another version.") from None
        return dict(answer)

    async def _execute(
        self, inventory: ClusterInventory, identity: str, action: str, options: Mapping[str, Any]
    ) -> str:
        # A kernel that has lost a cluster cannot start its machines.
        live = [] if action == "start" else inventory.live_reports(identity)
        is_of_run = action == "interrupt" and bool(options.get("run"))
        for report in live if is_of_run else live[:1]:
            file = self._reports.connection_file(report.kernel.kernel)
            message = {"action": action, "cluster": identity, **options}
            try:
                return await kernel_client.request(report.kernel, file, message)
            except NoAnswer:
                if action not in ("interrupt", "where", "stop", "down"):
                    raise
            except SkyError:
                if not is_of_run:  # which may be another kernel's
                    raise
        row = inventory.row(identity)
        if row is None:
            raise SkyError(NO_CLUSTER)
        if not isinstance(row, RegistryRow) and action != "down":
            raise SkyError(f"the registry entry of {row.name} cannot be read: end the cluster.")
        said = await cli_process.run(
            *command_line(action, row.name, options), only=row.id, acts=True
        )
        return said.rstrip() if action == "where" else _last_line(said)

    def failures(self, inventory: ClusterInventory) -> Mapping[str, str]:
        """Return the errors of actions that took long, by the ids of clusters that still exist."""
        if inventory.home is not None:
            existing = {row.id for row in inventory.rows} | set(inventory.reports)
            for identity in self._failures.keys() - existing:
                del self._failures[identity]
        return self._failures

    def _finished_late(self, identity: str, action: str, task: asyncio.Task[str]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, SkyError):
            self._failures[identity] = str(error)
        else:
            self._failures[identity] = f"{action} did not work; the server's log says why."
            logging.getLogger(__name__).error("%s did not work", action, exc_info=error)


def command_line(action: str, name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the words after ``jupyter sky`` for an action on a cluster.

    Raises
    ------
    SkyError
        If the name is not valid for a cluster; a damaged registry may contain anything.
    """
    if not CLUSTER_NAME.fullmatch(name):
        raise SkyError(f"no cluster can have the name {name[:60]!r}: the registry is damaged.")
    match action, options:
        case "down", _:
            return ["down", name]
        case "stop", {"dry_run": True}:
            return ["stop", name, "--dry-run"]
        case "start", {"max_price": int() | float() as price} if price:
            return ["start", name, f"--max-price={price}"]
        case "stop" | "start", _:
            return [action, name]
        case "interrupt", {"run": str() as run}:
            return ["interrupt", f"--run={run}", "--cluster", name]
        case "restart", {"ranks": [*ranks]}:
            return ["restart", ",".join(map(str, ranks)), "--cluster", name]
        case "scale", {"nodes": nodes, "max_price": int() | float() as price}:
            return ["scale", str(nodes), f"--agreed={price}", "--cluster", name]
        case "scale", {"nodes": nodes}:
            return ["scale", str(nodes), "--cluster", name]
    return [action, "--cluster", name]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["done"])[-1]
