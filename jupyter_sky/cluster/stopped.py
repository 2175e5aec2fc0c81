"""Describes what was stopped: a run, after how long and which ranks did not react, or a start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set

from jupyter_sky.cluster.errors import Interrupted, TimedOut
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.formatting import format_list, format_ranks
from jupyter_sky.transport.event_loop import CleanUpFailed, StillCleaningUp


def raise_if_stopped(
    run: Run, deadline: float, untold: Sequence[Connection], ended_at_once: Set[int] = frozenset()
) -> None:
    """Raise what a run that was stopped ends with.

    Parameters
    ----------
    run
        The run.
    deadline
        Seconds within which ranks have to react to Stop.
    untold
        The connections to nodes that have not answered yet to Stop.
    ended_at_once
        The ranks whose processes are ended because Stop was pressed again.

    Raises
    ------
    Interrupted
        If somebody has stopped it.
    TimedOut
        If its time limit has passed.
    """
    if run.stopped_by_user:
        if run.trouble and not run.sent:
            raise Interrupted(f"{run.trouble}") from None
        raise Interrupted(_what_stopped(run, deadline, untold, ended_at_once)) from None
    if (limit := run.time_limit) is not None:
        if run.trouble and not run.sent:
            raise TimedOut(f"the time limit is over: {run.trouble}") from None
        limit = run.task.attempt.timeout or limit
        what = _what_stopped(run, deadline, untold, ended_at_once)
        raise TimedOut(f"the time limit of {limit:g} s is over: {what}") from None


def raise_if_asked_to_stop(run: Run) -> None:
    """Refuse a further attempt at a run that was stopped between two of them.

    Raises
    ------
    Interrupted
        If it was.
    """
    if run.asked_to_stop:
        raise Interrupted("the run was stopped: it is not tried again.")


@contextlib.contextmanager
def start_of(name: str) -> Iterator[None]:
    """Say which cluster was being started where Ctrl-C stops that, and what is left of it.

    Raises
    ------
    Interrupted
        If the user stops it.
    """
    try:
        yield
    except Interrupted:
        raise
    except CleanUpFailed as stop:
        raise Interrupted(f"the start of {name} was stopped; {stop}") from None
    except StillCleaningUp:
        raise Interrupted(
            f"the start of {name} was stopped, and what it had begun is still being ended: `%sky "
            "status` shows whether that is gone."
        ) from None
    except KeyboardInterrupt:
        raise Interrupted(f"the start of {name} was stopped; nothing is left running.") from None


def _what_stopped(
    run: Run, deadline: float, untold: Sequence[Connection], ended_at_once: Set[int]
) -> str:
    seconds = run.seconds - (run.began - run.started)
    waiting = frozenset() if run.finished else run.waiting
    has_any_stopped = not waiting.issuperset(run.task.ranks)
    they, were = ("it", "was") if len(run.task.ranks) == 1 else ("they", "were")
    if _came_too_late(run):
        who = format_ranks(run.task.ranks)
        return f"{who} had finished after {seconds:.1f} s, before {they} could be stopped."
    done = "stopped" if has_any_stopped else f"{were} to stop"
    text = f"{format_ranks(run.task.ranks)} {done} after {seconds:.1f} s"
    if not run.asked_to_stop:  # another notebook, a terminal or the ranks' own code did it
        text += ", and not by this notebook"
    ended = set(run.task.ranks) - run.done.keys() if run.finished and not run.trouble else set()
    if ended and run.talk is None:
        process = "process" if len(ended) == 1 else "processes"
        text += f"; the {process} of {format_ranks(ended)} had to be ended, and variables are lost"
    # Who presses Stop twice is faster than an answer from far away: of a link that is up, it comes.
    silent = [
        each
        for each in untold
        if waiting & each.ranks and not (each.is_up and ended_at_once & each.ranks)
    ]
    away = waiting & frozenset(rank for each in silent for rank in each.ranks)
    if now := (waiting & ended_at_once) - away:
        who = format_ranks(now) if has_any_stopped or away else they
        are, their = ("is", "its") if len(now) == 1 else ("are", "their")
        text += (
            f"; as Stop was pressed again, {who} {are} ended at once, and {their} variables are "
            "lost"
        )
    elif heard := waiting - away:
        who, limit = format_ranks(heard), f"{deadline:g} s"
        named = who if has_any_stopped or away else they
        reads = " (or what was recorded is still being read)" if run.task.records else ""
        text += (
            f"; {named} did not react yet{reads}: a rank that has not within {limit} is ended, "
            "and its variables are lost"
            if run.task.script is None
            else f"; the script of {who} has not ended yet: what is left of it within {limit} "
            "is killed, and the ranks keep their variables"
        )
    if away:
        names = format_list([*dict.fromkeys(each.name for each in silent)])
        answer = "answers" if len(silent) == 1 else "answer"
        text += f"; {format_ranks(away)} will hear of it when {names} {answer} again"
    if run.trouble:  # it ended with the cluster, before ranks could react
        text += f"; {run.trouble}".rstrip(".")
    return f"{text}. {seen_before(run.hang.findings)}".rstrip()


def _came_too_late(run: Run) -> bool:
    """Return whether every rank had finished before it was told to stop."""
    if run.failed or run.done.keys() != set(run.task.ranks):
        return False
    return not any(each.stopped for each in run.done.values())


def seen_before(found: Findings | None) -> str:
    """Return which ranks waited for which when a run ended; empty if none did."""
    return f"Before that, {found.past}." if found else ""
