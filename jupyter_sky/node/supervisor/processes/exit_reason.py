"""Describes why the process of a rank ended."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from jupyter_sky.formatting import last_line
from jupyter_sky.node.kills import Kills
from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.serialization import cell_sources

_LINES = 500  # last lines of the log in which to look for a crash: 100 for each thread
_TAIL = 64 * 1024  # bytes of them
_SHOWN = 5
_SAID = 2  # lines before a crash
_IN_FILE = re.compile(r'File "(.*)"(?=, line )')
_SCRIPT_TAIL = 16 * 1024  # bytes of a script's output in which to look for its last lines
_SCRIPT_LINES = 80  # lines, since torchrun writes many about itself


class ExitReasons:
    """Explains the ends of processes on this node."""

    def __init__(self) -> None:
        self._kills = Kills()

    def explain(self, status: int, process: RankProcess) -> str:
        """Return what the exit status of a process means; what it said last, if nothing else shows.

        That is so of one without a run, as while it starts.
        """
        if status >= 0:
            text = f"its process ended with status {status}"
            process.drain()
            said = last_line(last_lines(process), "") if status and not process.run else ""
            return f"{text} ({said})" if said else text
        if process.ignored_stop:
            return f"it did not react to Stop within {process.ignored_stop:g} s, and was ended"
        if process.is_ending:
            return "its process was ended on request, as by `%sky restart`"
        return self._kills.explain(-status)


def last_lines(process: RankProcess) -> str:
    """Return the last lines that a process printed, in its last run if it had one.

    Of a crash it is the beginning, which says where it happened.
    """
    size = process.log.size - process.offset
    lines = process.log.tail(_LINES, limit=min(size, _TAIL)).decode(errors="replace")
    printed = lines.splitlines()
    crashes = [index for index, line in enumerate(printed) if line.startswith("Fatal Python error")]
    if not crashes:
        return "\n".join(printed[-_SHOWN:])
    crash = crashes[-1]
    # An abort is preceded by its reason: an uncaught C++ exception, or the C library's message.
    why = printed[max(0, crash - _SAID) : crash] if printed[crash].endswith("Aborted") else []
    # faulthandler prints other threads first.
    what, *where = printed[crash:]
    at = next((i for i, line in enumerate(where) if line.startswith("Current thread")), 0)
    return "\n".join([*why, what, *_down_to_cell(where[at:], _titles(process))])


def _titles(process: RankProcess) -> Mapping[str, str]:
    """Return the titles of the cells that a rank has run, which it has told the agent."""
    file = process.stacks
    return {} if file is None else stacks.titles_in(os.pread(file, stacks.NAMES_SIZE, 0))


def _down_to_cell(where: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    """Return the first lines of a dumped stack, and the cell's where it is further down."""
    named = [_IN_FILE.sub(lambda match: _place(match, titles), line) for line in where]
    cells = [i for i, line in enumerate(where) if named[i] != line]
    if not cells:
        return named[:_SHOWN]
    last, first = cells[-1], cells[0]
    if first < _SHOWN:
        return named[: min(_SHOWN, last + 1)]
    return [*named[: _SHOWN - 2], "  ...", named[first]]


def _place(match: re.Match[str], titles: Mapping[str, str]) -> str:
    title = titles.get(match[1])
    return match[0] if title is None else cell_sources.name(title)


def last_lines_of_script(process: RankProcess) -> list[str]:
    """Return the last lines of output of a run's script."""
    text = process.run_output(_SCRIPT_TAIL).decode(errors="replace")
    return text.splitlines()[-_SCRIPT_LINES:]
