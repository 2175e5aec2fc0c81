"""Remote errors: an exception of the original type that knows its rank and its traceback.

The exception is built here from plain data. Nothing that a node sends is unpickled for it.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import for_terminal, format_ranks, format_some, plain, shortened
from jupyter_sky.transport.protocol.error_report import (
    MEMBERS,
    ChainedError,
    ErrorReport,
    is_consequence,
)

BEFORE_LAST_LINES = " Its last lines:"
"""What stands before the last lines of a rank that was lost."""


def busy(name: str) -> UsageError:
    """Return the error of scaling a cluster while something runs."""
    return UsageError(
        f"cluster {name} is busy: scale it when the run is over, or stop that first with "
        "`%sky interrupt`."
    )


@dataclass(frozen=True)
class Failure:
    """The failure of a rank: its error report, and the name of its node."""

    rank: int
    host: str
    error: ErrorReport

    @property
    def signature(self) -> tuple[Any, ...]:
        """A key that is equal for ranks that failed in the same way."""
        # The errors of a group are in the order in which tasks ended, which is chance.
        chain = sorted(map(_likeness, self.chain), key=repr)
        return self.error["type"], self.error["text"], *chain

    @property
    def way(self) -> tuple[Any, ...]:
        """A key that is equal for ranks that were lost in the same way, too: they differ in names.

        Each has its number in its error, and behind it the last lines that it has printed.
        """
        if self.error["type"] != RankLost.__qualname__:
            return self.signature
        what = self.error["text"].partition(BEFORE_LAST_LINES)[0]
        return RankLost.__qualname__, what.removeprefix(f"rank {self.rank} ")

    @property
    def chain(self) -> list[ChainedError]:
        """Its error and the causes of that; empty if it was not raised by code."""
        return self.error.get("chain", [])


class RemoteError(Exception):
    """An error that was raised on a rank.

    It is also an instance of the original type, if that is known here, so that ``except
    ValueError`` catches a remote ``ValueError``. Only syntax errors and ``StopIteration`` are an
    exception.

    Attributes
    ----------
    rank
        The rank that failed first.
    host
        The node that it is on.
    remote_traceback
        The traceback as the rank showed it.
    failures
        Every failure of the run, the first one first.
    """

    rank: int
    host: str
    remote_traceback: str
    failures: tuple[Failure, ...]
    index: int | None = None
    """Of many calls, the position of the one that failed; the first is 0."""
    place = ""
    """The same in words, with what it was called with."""
    advice = ""
    """What to do about it, where that is known; shown behind everything else."""
    origin: tuple[str, str] | None = None
    """The cluster and the run that it came from, for the debugger."""

    @property
    def exceptions(self) -> tuple[RemoteError, ...]:
        """The errors of all failed ranks, like those of an exception group."""
        return tuple(remote_error([failure]) for failure in self.failures)

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: the user sees their own lines, not the frames that led here.
        lines = list(map(for_terminal, self.failures[0].error["traceback"]))
        summary = _summary(self.failures)
        summary += filter(None, [self.place])
        if len(lines) == len(summary) == 1 and "\n" not in lines[0]:
            lines = ["; ".join(filter(None, [f"{lines[0]} ({summary[0]})", self.advice]))]
        else:
            lines += [*summary, *filter(None, [self.advice])]
        return lines if _colours_are_wanted() else [_COLOUR.sub("", line) for line in lines]

    def __str__(self) -> str:
        return self.failures[0].error["text"]

    def __reduce__(self) -> tuple[Any, ...]:
        return remote_error, (self.failures,)


class RankLost(RemoteError):
    """A rank's process ended in the middle of a run."""


class RemoteTraceback(Exception):
    """The cause of a remote error, where Python formats it: in a script, in logs and in tests."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Interrupted(KeyboardInterrupt):
    """The user stopped a run."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


@contextlib.contextmanager
def heard_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C even if a lock turned it into another error.

    `threading.Condition.wait` releases its lock and acquires it again. If Ctrl-C comes in between,
    the lock is released twice, and ``RuntimeError: release unlocked lock`` is raised during the
    interrupt. ipykernel waits like this when it flushes output.
    """
    before = sys.exception()
    try:
        yield
    except RuntimeError as error:
        cause = error.__context__
        if isinstance(cause, KeyboardInterrupt) and cause is not before:
            raise KeyboardInterrupt from None
        raise


class RunStopped(SkyError):
    """The user stopped a run that a task awaits."""


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Raise `RunStopped` for the `KeyboardInterrupt` of a run, within a task.

    A task that ends with a `KeyboardInterrupt` ends its event loop, and with it the kernel.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise RunStopped(str(stop) or "the run was stopped.") from stop


class TimedOut(SkyError, TimeoutError):
    """A run exceeded its time limit."""


class BegunInPart(SkyError):
    """Some ranks have begun a run, and others were lost before: its failures say which."""


FORMER_GROUP = (
    "The process group was formed again since the cluster began, as after a Stop in a collective, "
    "a lost rank or scaling. What was made with one of another size, like a "
    "DistributedDataParallel, a Trainer or a DeviceMesh, no longer reaches the other ranks: make "
    "it again. A sharded model still has its weights: `sky.save` saves them, and `sky.load` gives "
    "them to the new one."
)
"""What to do where a connection failed on every rank, and nothing else did."""

# What torch says of a group that was left, when it is looked up, and Accelerate of what it has
# forgotten with a group of another size.
_NO_SUCH_GROUP = re.compile(
    "Could not resolve the process group registered|`AcceleratorState` object has no attribute"
)


def not_sent(error: Exception, what: str) -> SkyError:
    """Return the error of a run or call that an error of any kind has kept from being sent.

    It is kept, and the frames of its traceback would hold the user's values.
    """
    if not isinstance(error, SkyError):
        error = SkyError(f"{what} could not be sent: {type(error).__name__}: {error}")
    return error.with_traceback(None)


def remote_error(
    failures: Sequence[Failure],
    before: str = "",
    reformed: bool = False,
    in_cell: bool = False,
) -> RemoteError:
    """Return the exception for the failures of a run, in order of arrival.

    Parameters
    ----------
    failures
        The failures.
    before
        A sentence about which ranks waited for which, added if waiting is what went wrong.
    reformed
        Whether objects may exist that were made with an earlier process group.
    in_cell
        Whether the error ends a cell. It is then not an exception group, which IPython would format
        like Python, with our lines instead of the rank's, and not as an error output.
    """
    failures = sorted(failures, key=_remoteness)
    causes = [failure for failure in failures if _remoteness(failure) < _CONSEQUENCE]
    failures = causes or failures
    first = failures[0]
    error = _new(first, may_be_group=not in_cell)
    error.args = tuple(first.error["args"])
    error.rank, error.host = first.rank, first.host
    error.remote_traceback = "\n".join(map(for_terminal, first.error["traceback"]))
    if "\n" in error.remote_traceback:  # more than the error itself
        error.__cause__ = RemoteTraceback(_COLOUR.sub("", error.remote_traceback))
    error.failures = tuple(failures)
    for name, value in first.error["attributes"].items():
        if not name.startswith("_") and isinstance(getattr(type(error), name, None), MEMBERS):
            with contextlib.suppress(Exception):  # a setter of the user's may raise anything
                setattr(error, name, value)
        elif name not in vars(error):
            error.__dict__[name] = value
    for line in _summary(failures):
        error.add_note(line)
    if before and _is_about_waiting(first):
        error.advice = before
    elif reformed and (not causes or _NO_SUCH_GROUP.search(first.error["text"])):
        error.advice = FORMER_GROUP
    if error.advice:
        error.add_note(error.advice)
    return error


_TIME_IS_OVER = re.compile(r"timed? ?out", re.I)


def _is_about_waiting(failure: Failure) -> bool:
    """Return whether ranks waited in vain: the time was over, or a rank is gone."""
    text = failure.error["text"]
    return _remoteness(failure) != 1 or _TIME_IS_OVER.search(text) is not None


# The error of a collective whose peer has failed.
_CONSEQUENCE = 2


def _remoteness(failure: Failure) -> int:
    """Sort key of failures by their distance from the cause, such as a lost rank."""
    if failure.error["type"] == RankLost.__qualname__:
        return 0
    return _CONSEQUENCE if is_consequence(failure.error["text"]) else 1


def _new(failure: Failure, may_be_group: bool) -> RemoteError:
    """Return an exception of the nearest known type that can be instantiated."""
    report = failure.error
    members = [
        remote_error([replace(failure, error={**each, "exceptions": [], "chain": []})])
        for each in report["exceptions"]
    ]
    for original in _known_types(report):
        kind = _remote_type(original, *report["bases"][0])
        if may_be_group and members and issubclass(original, BaseExceptionGroup):
            return kind.__new__(kind, report["text"], members)
        # Some types need arguments of their own, and MemoryError cannot create instances of types
        # with another base before it.
        for make in (kind.__new__, BaseException.__new__):
            with contextlib.suppress(Exception):  # it may want arguments that did not come
                return make(kind)
    return RemoteError()


def _known_types(error: ErrorReport) -> Iterator[type[Exception]]:
    """Yield the types of an error that are already loaded here, the nearest first."""
    for module, name in error["bases"]:
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if not isinstance(found, type) or not issubclass(found, Exception):
            continue
        # Here they would end the iterator or coroutine that they pass, as if all were well.
        if not issubclass(found, StopIteration | StopAsyncIteration):
            yield found


def _remote_type(original: type[Exception], module: str, name: str) -> type[RemoteError]:
    """Return a subclass of a known type, with the name of the rank's error type."""
    if issubclass(original, RemoteError):
        return original
    # For a syntax error, IPython would show the frames that led here, not the rank's report.
    also = () if issubclass(original, SyntaxError) else (original,)
    body: dict[str, Any] = {"__module__": module, "__qualname__": name}
    if issubclass(original, BaseExceptionGroup):
        body["exceptions"] = BaseExceptionGroup.exceptions  # its own, not those of other ranks
    try:
        return type(name.rpartition(".")[2], (RemoteError, *also), body)
    except TypeError:
        # Some exceptions from C code cannot have a second base; their own base can.
        return _remote_type(original.__base__ or builtins.Exception, module, name)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def _colours_are_wanted() -> bool:
    from IPython import get_ipython

    shell = get_ipython()
    return shell is None or str(shell.colors).lower() != "nocolor"


_MOST = 8
"""Errors told beside the first one: each of many ranks may have a text of its own."""

_LONGEST = 200  # characters of such an error


def _summary(failures: Sequence[Failure]) -> list[str]:
    """Say which ranks failed, combining equal errors, and losses of ranks for the same reason."""
    groups: dict[tuple[Any, ...], list[Failure]] = {}
    for failure in failures:
        groups.setdefault(failure.way, []).append(failure)
    first, *others = groups.values()
    others.sort(key=lambda members: min(each.rank for each in members))
    lines = _places(first)
    for members in others[:_MOST]:
        place, *more = _places(members)
        lines += [f"{_apart(members[0], failures[0])} {place}", *more]
    if untold := [each for members in others[_MOST:] for each in members]:
        lines.append(f"other errors {_where(untold)}")
    return lines


def _places(members: Sequence[Failure]) -> list[str]:
    """Say where ranks failed in one way, and apart from that those whose errors are no copies."""
    equal = [each for each in members if each.signature == members[0].signature]
    others = [each for each in members if each not in equal]
    return [_where(equal), *([f"the same {_where(others)}"] if others else [])]


def _where(failures: Sequence[Failure]) -> str:
    ranks = [each.rank for each in failures]
    hosts = dict.fromkeys(host for _, host in sorted((each.rank, each.host) for each in failures))
    return f"on {format_ranks(ranks)} ({format_some([*hosts], 3)})"


def _apart(failure: Failure, first: Failure) -> str:
    """Say what a failure is, in a line: its cause where that alone tells it from the first one."""
    kind, text = failure.error["type"], failure.error["text"]
    said = [kind, text.splitlines()[0].removesuffix(BEFORE_LAST_LINES) if text else ""]
    if not failure.chain:
        return _in_line(said)
    other = failure.chain[0]
    if (kind, text) == (first.error["type"], first.error["text"]):
        known = [_likeness(each) for each in first.chain]
        other = next((each for each in failure.chain if _likeness(each) not in known), other)
        said = [other["type"], other["text"]]
    place = f"{other['place']}, line {other['line']}" if other["place"] else ""
    beside = "; ".join(filter(None, [*other["notes"], place]))
    return _in_line(said) + (f" ({plain(beside)})" if beside else "")


def _in_line(said: Sequence[str]) -> str:
    return shortened(plain(": ".join(filter(None, said))), _LONGEST)


# Such as addresses, and a rank's own number: they differ between ranks that failed in the same way.
_WITH_DIGITS = re.compile(r"\w*\d\w*")


def _likeness(error: ChainedError) -> tuple[Any, ...]:
    """Return what tells an error of a chain from others."""
    words = [_WITH_DIGITS.sub("0", each) for each in (error["text"], *error["notes"])]
    return error["type"], *words, error["place"], error["line"]
