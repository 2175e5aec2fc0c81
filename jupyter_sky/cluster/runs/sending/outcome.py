"""How the parts of a run end: what that means for the other ranks, and for their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import Done
from jupyter_sky.cluster.inspection import unmatched
from jupyter_sky.cluster.loss import is_tried_again
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import ranks_done
from jupyter_sky.transport.protocol.events import RankDone


def fail_together(controller: Controller, task: Task) -> bool:
    """Return whether a rank that fails in a run stops the others."""
    if task.script:
        return task.script["together"]
    if task.serves:
        return False
    return controller.runtime_env.together and len(controller.ranks) > 1


def to_interrupt(controller: Controller, run: Run, failed: Connection) -> list[Connection]:
    """Return the nodes on which the other ranks of a run end with one that has failed."""
    if fail_together(controller, run.task):
        # The agent of the failed rank has done so itself.
        return [each for each in controller.connections if each is not failed]
    return list(controller.connections) if is_tried_again(run) else []


def ends_everywhere(controller: Controller, run: Run) -> bool:
    """Return whether ranks that have not begun a run are not to begin it any more."""
    if run.finished or run.stopped:
        return True
    return run.failed and fail_together(controller, run.task)


def note_names(controller: Controller, task: Task, done: Sequence[RankDone]) -> None:
    """Note what ranks have of the notebook's names after their parts of a run."""
    sync, update = controller.sync, task.update
    for well in (True, False):
        these = [event for event in done if (event.outcome == "ok") is well]
        if these:
            sync.ran(update, {event.rank: event.bound for event in these}, well=well)
    for event in done:
        if event.arrived is not None and event.outcome != "ok":
            sync.missed(update, event.rank, event.arrived)


def may_be_unmatched(run: Run, done: Sequence[Done]) -> bool:
    """Return whether a run is over with these parts, and ranks have begun unequal collectives."""
    if len(done) != len(run.waiting) or run.is_ending:
        return False
    return unmatched.may_be_there([*run.done.values(), *(event for _, event in done)])


async def give_up_unmatched(
    controller: Controller, run: Run, done: Sequence[Done], then: Callable[[], object]
) -> None:
    """Have the group formed again if ranks have begun collectives that others never will.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run, done
        The run, and its last parts.
    then
        Called once that is known.
    """
    try:
        if said := await unmatched.find(controller, run.task.ranks):
            run.on_notice(said)
            broken = (replace(event, broken=True) for _, event in done)
            controller.state = ranks_done(controller.state, broken)
    finally:
        then()
