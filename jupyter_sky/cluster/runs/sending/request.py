"""The request of a run: what the agents of its ranks are sent, and the task that it tells of."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory.owed_runs import OwedRun
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.sending.outcome import fail_together
from jupyter_sky.cluster.runs.task import Attempt, Task
from jupyter_sky.transport.protocol.events import RunBegan
from jupyter_sky.transport.protocol.messages import NameGroup, RunRequest, Script
from jupyter_sky.transport.rank_ranges import among, to_ranges


async def request_of(
    controller: Controller, run: Run, ranks: Sequence[int], together: bool
) -> RunRequest:
    """Return the request of a run for some of its ranks.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run, ranks
        The run, and the ranks that are to begin.
    together
        Whether these are all ranks of the cluster, which begin a cell or call at once.
    """
    task, update = run.task, run.task.update
    checkpoint = task.attempt.checkpoint
    asked = {name.partition(":")[0] for each in task.values.values() for name in each}
    return {
        "run": run.id,
        "code": task.code,
        "call": task.call,
        "script": await _with_port(controller, task),
        "cells": dict(task.cells),
        "place": (task.place.title, task.place.above),
        "generation": controller.state.generation,
        "values": {rank: list(asked) for rank, asked in task.values.items()},
        "watched": sorted(update.watched | asked),
        "outdated": update.outdated,
        "names": update.groups,
        "show": to_ranges(task.show),
        "title": task.title,
        "everyone": to_ranges(task.ranks),
        "ranks": to_ranges(ranks),
        "together": fail_together(controller, task),
        "serves": task.serves,
        "talks": task.talks,
        "records": list(task.records),
        "deadline": controller.timeouts.stop,
        "debugging": task.debugging,
        "checkpoint": checkpoint.path if checkpoint else None,
        "program": None if task.program is None else list(task.program),
        "after_cut_off": together and controller.state.cut_off,
        "first": False,
        "client": "",
        "attempts_left": task.attempt.left,
    }


async def _with_port(controller: Controller, task: Task) -> Script | None:
    """Return the script of a run, with a port on which its processes find each other.

    There is a port only if the head takes part.
    """
    if not task.script or 0 not in task.ranks:
        return task.script
    addr = controller.state.nodes[0].addr
    answer = await controller.connection(0).request("reserve", rank=0, addr=addr)
    return {**task.script, "port": answer["port"]}


def names_for(connection: Connection, names: Sequence[NameGroup]) -> list[NameGroup]:
    """Return the groups of names that the ranks of a node get."""
    here = connection.ranks
    return [
        {**group, "ranks": sorted(own)}
        for group in names
        if (own := here.intersection(group["ranks"]))
    ]


def task_of(began: RunBegan, known: Sequence[int], owed: OwedRun) -> Task:
    """Return the task of a run that another kernel began."""
    ranks, show = tuple(among(began.ranks, known)), tuple(among(began.show, known))
    attempt = Attempt(limit=1 + began.attempts_left)
    return Task(
        ranks,
        values=owed.asked,
        gathered=owed.gathered,
        show=show,
        title=began.title,
        attempt=attempt,
    )
