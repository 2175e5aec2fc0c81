"""Errors of a rank as text and plain data, for messages and users."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any

from jupyter_sky.node.rank.inspection import stacks
from jupyter_sky.serialization import cell_sources
from jupyter_sky.transport.protocol.error_report import (
    MEMBERS,
    ChainedError,
    ErrorReport,
    SingleError,
)

_LONGEST = 20_000  # characters of an error's text
_DEEP = 100  # calls in each other
_MOST_LINES = 100  # of a traceback of Python's own
_MOST_CHAINED = 20  # errors because of which one was raised
_LONGEST_LINE = 200  # characters of what is told of one of them
_MADE_UP = re.compile(r"^.*'Could not get source, probably due dynamically .*\n?", re.MULTILINE)


def leave_out_hidden(error: BaseException) -> None:
    """Let the traceback of an error end at the line that called a function of ours as Python's own.

    Modules with such functions say so as it is known from pytest: with ``__tracebackhide__``.
    """
    at, last = error.__traceback__, None
    while at:
        last = at if not at.tb_frame.f_globals.get("__tracebackhide__") else last
        at = at.tb_next
    if last:
        last.tb_next = None


def has_group(error: BaseException | None) -> bool:
    """Return whether an error is an exception group, or was raised because of one."""
    while error is not None and not isinstance(error, BaseExceptionGroup):
        error = error.__context__
    return error is not None


def is_deep(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised because of, came out of very many calls.

    Above all that is a recursion without end.
    """
    seen = set()  # an error may be its own cause
    while error is not None and id(error) not in seen:
        if sum(1 for _ in traceback.walk_tb(error.__traceback__)) > _DEEP:
            return True
        seen.add(id(error))
        error = _reason(error)
    return False


def _reason(error: BaseException) -> BaseException | None:
    """Return the error that one was raised because of, as Python shows it."""
    cause = error.__cause__
    return cause if cause is not None or error.__suppress_context__ else error.__context__


def bare_lines(error: BaseException) -> list[str]:
    """Return Python's traceback of an error, starting at the user's own lines.

    IPython cannot format an exception group, and takes long for an error inside a large library.
    For each call it goes through all modules, which takes many seconds for a thousand calls.
    """
    frames = error.__traceback__
    while (
        frames and frames.tb_next and frames.tb_frame.f_code.co_filename not in cell_sources.titles
    ):
        frames = frames.tb_next
    return python_lines(error, frames)


def print_of_thread(raised: threading.ExceptHookArgs) -> None:
    """Print the error that has ended a thread, with its lines in cells as those of a cell have."""
    error, frames = raised.exc_value, raised.exc_traceback
    if error is None or isinstance(error, SystemExit):
        return
    while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == threading.__file__:
        frames = frames.tb_next
    leave_out_hidden(error)
    name = raised.thread.name if raised.thread else threading.get_ident()
    print(
        "\n".join([f"Exception in thread {name}:", *python_lines(error, frames)]), file=sys.stderr
    )


_format_warning = warnings.formatwarning


def warning_lines(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning as Python prints it, with its line in a cell as an error has it."""
    text = _format_warning(message, category, filename, lineno, line)
    if title := cell_sources.titles.get(filename):
        name = cell_sources.name(title)
        return f"{name}, line {lineno}{text.removeprefix(f'{filename}:{lineno}')}"
    return text


def python_lines(error: BaseException, frames: TracebackType | None) -> list[str]:
    """Return Python's traceback of an error, with lines in cells named as a notebook names them."""
    text = "".join(traceback.format_exception(type(error), error, frames))
    for name, title in cell_sources.titles.items():
        text = text.replace(f'File "{name}"', cell_sources.name(title))
    if not is_deep(error):
        return text.splitlines()
    shown = []
    # Lines of calls are indented; what each error of a chain says is not.
    for are_of_calls, group in groupby(text.splitlines(), lambda line: line.startswith("  ")):
        lines = list(group)
        if are_of_calls and (left_out := len(lines) - _MOST_LINES) > 1:
            half = _MOST_LINES // 2
            lines[half:-half] = [f"  [{left_out} lines are left out]"]
        shown += lines
    return shown


def with_known_source(lines: Iterable[str]) -> list[str]:
    """Return IPython's traceback without the line that it makes up for code without a file."""
    return [_MADE_UP.sub("", each) for each in lines]


def text(error: BaseException) -> str:
    """Return the text of an error, whatever its own methods do."""
    if isinstance(error, SystemExit) and error.code is None:
        return ""  # not "None", which is no reason
    try:
        return str(error)
    except Exception:  # of any kind, from its own `__str__`
        return f"<{type(error).__qualname__} that cannot be shown>"


def report(error: BaseException, lines: Sequence[str]) -> ErrorReport:
    """Return an error as plain data, with the lines of its traceback."""
    members = error.exceptions[:100] if isinstance(error, BaseExceptionGroup) else ()
    exceptions = [_single(each, traceback.format_exception(each)[-50:]) for each in members]
    return {**_single(error, lines), "exceptions": exceptions, "chain": _chain(error)}


def _chain(error: BaseException) -> list[ChainedError]:
    """Return an error, those that it is made of, and those that it was raised because of."""
    found: dict[int, ChainedError] = {}  # an error may be its own cause
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < _MOST_CHAINED:
        each = waiting.pop(0)
        if each is None or id(each) in found:
            continue
        notes = vars(each).get("__notes__")
        place, line = _last_line(each)
        found[id(each)] = {
            "type": type(each).__qualname__,
            "text": _first_line(text(each)),
            "notes": list(map(_first_line, plain(notes))) if isinstance(notes, list) else [],
            "place": place,
            "line": line,
        }
        members = each.exceptions[:100] if isinstance(each, BaseExceptionGroup) else ()
        waiting = [*members, _reason(each), *waiting]
    return list(found.values())


def _last_line(error: BaseException) -> tuple[str, int]:
    """Return the place and the number of the last line of the user's in a traceback."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if len(frames) > _DEEP:
        return "", 0  # in which of its calls a recursion without end has failed is chance
    for frame, line in reversed(frames):
        place, is_own = stacks.place_of(frame.f_code.co_filename, cell_sources.titles)
        if is_own:
            return shortened(place), line or 0
    return "", 0


def _first_line(said: object) -> str:
    return (shortened(str(said)).strip().splitlines() or [""])[0][:_LONGEST_LINE]


def _single(error: BaseException, lines: Sequence[str]) -> SingleError:
    kind = type(error)
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "bases": [(base.__module__, base.__qualname__) for base in kind.__mro__],
        "text": shortened(text(error)),
        "args": plain(list(error.args)) if isinstance(error.args, tuple) else [],
        "attributes": attributes(error),
        "traceback": [shortened(line) for line in lines[-500:]],
    }


def attributes(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an error, including those kept in C, like ``errno``."""
    found = dict(vars(error)) if hasattr(error, "__dict__") else {}
    for kind in type(error).__mro__:
        if kind is Exception:
            break
        for name, member in vars(kind).items():
            if isinstance(member, MEMBERS) and not name.startswith("_"):
                with contextlib.suppress(Exception):  # a property of the user's may raise anything
                    value = getattr(error, name)
                    if isinstance(value, str | int | float | None):
                        found.setdefault(name, value)
    return dict(plain(found))


def shortened(text: str) -> str:
    """Return a text, shortened for a message and a user."""
    kept = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
    # A notebook cannot show lone surrogates: they are escaped, as in printed text.
    return kept.encode(errors="backslashreplace").decode()


def plain(value: Any, depth: int = 4) -> Any:
    """Return ``value`` as plain data for a message; other objects become their text."""
    if isinstance(value, str):
        return shortened(value)
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)
    if depth and isinstance(value, (list, tuple)):
        return [plain(item, depth - 1) for item in value[:100]]
    if depth and isinstance(value, dict):
        items = [(key, item) for key, item in list(value.items())[:100] if isinstance(key, str)]
        return {shortened(key): plain(item, depth - 1) for key, item in items}
    try:
        return shortened(repr(value)[:1000])
    except Exception:  # of any kind, from its own `__repr__`
        return f"<{type(value).__qualname__}>"
