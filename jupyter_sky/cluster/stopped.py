"""Describes how a run was stopped: why, after how long, and which ranks did not react."""

from __future__ import annotations

from jupyter_sky.cluster.errors import Interrupted, TimedOut
from jupyter_sky.cluster.inspection.findings import Findings
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.formatting import format_ranks


def raise_if_stopped(run: Run, deadline: float) -> None:
    """Raise the error of a run if it was stopped.

    Parameters
    ----------
    run
        The run.
    deadline
        Seconds within which ranks have to react to Stop.

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
        raise Interrupted(_what_stopped(run, deadline)) from None
    if (limit := run.time_limit) is not None:
        limit = run.task.attempt.timeout or limit
        what = _what_stopped(run, deadline)
        raise TimedOut(f"the time limit of {limit:g} s is over: {what}") from None


def _what_stopped(run: Run, deadline: float) -> str:
    seconds = run.seconds - (run.began - run.started)
    text = f"{format_ranks(run.task.ranks)} stopped after {seconds:.1f} s"
    if not run.is_unwanted:  # another notebook, a terminal or the ranks' own code did it
        text += ", and not by this notebook"
    if (waiting := run.waiting) and not run.finished:
        who, limit = format_ranks(waiting), f"{deadline:g} s"
        text += (
            f"; {who} did not react yet: a rank that has not within {limit} is ended, and its "
            "variables are lost"
            if run.task.script is None
            else f"; the script of {who} has not ended yet: what is left of it within {limit} "
            "is killed, and the ranks keep their variables"
        )
    return f"{text}. {seen_before(run.findings)}".rstrip()


def seen_before(found: Findings | None) -> str:
    """Return which ranks waited for which when a run ended; empty if none did."""
    return f"Before that, {found.past}." if found else ""
