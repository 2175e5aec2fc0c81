"""``%sky logs``: the ends of ranks' logs, and new lines as they are added."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from jupyter_sky.api.display.rank_output import StreamDecoder, TerminalDecoder
from jupyter_sky.cluster import rank_log
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.rank_log import LogEntry, LogPart, LogPlace
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError, UsageError
from jupyter_sky.formatting import for_terminal, format_bytes, format_ranks, is_terminal
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.notebook.options.ranks import choose_ranks
from jupyter_sky.transport.protocol.agent_requests import LOG_BEGINNING, LOG_END

_LINES = 1000
_POLL_INTERVAL = 0.1  # seconds, while logs are followed and something comes
_IDLE_INTERVAL = 0.5  # seconds, once nothing has come for a while
_MOST_SAVED = LOG_BEGINNING + LOG_END + rank_log.LIMIT  # bytes, with notes of what was dropped
_SLOWER = 1.2
"""By what the interval grows each time that nothing has come."""


def logs(context: CommandContext, options: Namespace) -> None:
    """Print the logs of ranks, merged if there are several, or save one to a file."""
    with _cluster(context, options.cluster) as cluster:
        ranks = choose_ranks(cluster, options.ranks or "head", "logs")
        if options.save:
            print(_save_log(cluster, ranks, options.save))
            return
        printer: _Printer
        if options.json:
            printer = _JsonPrinter()
        elif len(ranks) > 1:
            printer = _LabelledPrinter(ranks)
        else:
            printer = _PlainPrinter(ranks[0], options.tail)
        _show_logs(cluster, ranks, options.tail or _LINES, printer, options.follow)


@contextlib.contextmanager
def _cluster(context: CommandContext, name: str | None) -> Iterator[Cluster]:
    """Provide a cluster, even if it is lost: the nodes that are left of it have their logs."""
    known = context.session.connected(name)
    if known and known.power.is_left:
        yield known
        return
    with context.visited_cluster(name) as cluster:
        yield cluster


def _show_logs(
    cluster: Cluster, ranks: Sequence[int], tail: int, printer: _Printer, follow: bool
) -> None:
    """Print the ends of logs.

    Parameters
    ----------
    cluster
        The cluster.
    ranks
        The ranks.
    tail
        The number of lines of each.
    printer
        Prints them.
    follow
        Whether to print new output until Ctrl-C, which stops nothing else, or until the nodes have
        ended, with which their logs end, too.

    Raises
    ------
    SkyError
        If one of them cannot be read; what was read of others is printed first. Where they are
        followed, one whose node is not connected goes on later.
    """
    reader = _Reader(cluster, ranks, tail, follow)
    # Ctrl-C ends the loop, wherever it arrives.
    with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():
        parts = reader.read()
        whole = {part.rank: part.size for part in parts}  # what comes later is only followed
        for part in parts:
            printer.left_out(part.start, part.data.count(b"\n"))
        interval = _POLL_INTERVAL
        while True:
            entries = [entry for part in parts for entry in reader.new_entries(part)]
            # Output of ranks is merged by the time of writing.
            for entry in sorted(entries, key=lambda entry: entry.time):
                printer.print(entry)
            sys.stdout.flush()
            # A node that cannot read the rest of a log sends nothing, however often it is asked.
            is_behind = any(
                part.data and part.end < (part.size if follow else whole[part.rank])
                for part in parts
            )
            if not reader.goes_on or not (follow or is_behind):
                break
            if not is_behind:
                interval = _POLL_INTERVAL if entries else min(_SLOWER * interval, _IDLE_INTERVAL)
                time.sleep(interval)
            parts = reader.read()
    printer.finish()
    if follow:
        with contextlib.suppress(KeyboardInterrupt):
            reader.stop()
    if reader.trouble:
        raise reader.trouble


class _Reader:
    """Reads logs piece by piece, beginning with their ends.

    Attributes
    ----------
    trouble
        Why one of them cannot be read, if so.
    """

    def __init__(self, cluster: Cluster, ranks: Sequence[int], tail: int, follow: bool) -> None:
        self.trouble: SkyError | None = None
        self._logs = cluster.log_reader(follow)
        self._follow = follow
        self._places = dict.fromkeys(ranks, LogPlace(tail))
        self._runs: dict[int, str] = {}
        self._left: dict[int, int] = {}  # bytes by rank
        self._silent: set[int] = set()
        self._ends: set[str] = set()

    @property
    def goes_on(self) -> bool:
        """Whether there may be more to read: somebody may have ended the nodes of all logs."""
        return bool(self._places) and not (self._follow and self.trouble)

    def read(self) -> list[LogPart]:
        """Return the next part of each log that can be read now."""
        read, were_silent = self._logs.read(self._places), frozenset(self._silent)
        parts = [part for rank, each in read.items() if (part := self._take(rank, each))]
        if silent := self._silent - were_silent:
            _note(
                f"there is no connection to {format_ranks(silent)}: what is printed there comes "
                "later"
            )
        if back := were_silent - self._silent:
            _note(f"connected again: {format_ranks(back)}")
        return parts

    def new_entries(self, part: LogPart) -> Iterator[LogEntry]:
        """Yield the entries of a part; each part, even an empty one, repeats which run it is of."""
        for entry in part.entries():
            if entry.run is None or self._runs.get(part.rank) != entry.run:
                yield entry
            if entry.run is not None:
                self._runs[part.rank] = entry.run

    def stop(self) -> None:
        """Tell nodes that no more is read, or for a moment they would wait for it when they end."""
        self._logs.leave(self._places)

    def _take(self, rank: int, read: LogPart | SkyError) -> LogPart | None:
        """Return what was read of a log, if anything was, and go on behind it."""
        match read:
            case NoConnection() if self._follow:
                self._silent.add(rank)
                return None
            case ClusterLost(nodes=(), reason=reason) if self._follow:
                self._end(rank, reason.rstrip("."))
                return None
            case SkyError():
                del self._places[rank]
                self.trouble = self.trouble or read
                return None
        self._silent.discard(rank)
        self._places[rank] = LogPlace(offset=read.end)
        self._left[rank] = read.size - read.end
        return read

    def _end(self, rank: int, reason: str) -> None:
        """Read no more of a log whose node somebody has ended; each reason is said once."""
        del self._places[rank]
        if reason not in self._ends:
            _note(reason)
        self._ends.add(reason)
        if left := self._left.get(rank):
            _note(f"the last {format_bytes(left)} of the log of rank {rank} were not read in time")


def _note(text: str) -> None:
    """Print a note, which is no part of any log."""
    print(f"[{text}]", file=sys.stderr, flush=True)


class _Printer(Protocol):
    """Prints entries of logs."""

    def left_out(self, size: int, lines: int) -> None:
        """Note how many bytes precede the first of ``lines`` lines."""

    def print(self, entry: LogEntry) -> None:
        """Print an entry: output, or the beginning of a run."""

    def finish(self) -> None:
        """Print the rest of unfinished lines."""


class _PlainPrinter:
    """Prints the output of one rank: unchanged, unless a terminal would take it for commands."""

    def __init__(self, rank: int, asked: int | None) -> None:
        self._rank = rank
        self._asked = asked
        self._decoder = TerminalDecoder() if is_terminal(sys.stdout) else StreamDecoder()

    def left_out(self, size: int, lines: int) -> None:
        if size and (self._asked is None or lines < self._asked):
            print(
                f"[{size:,} bytes above are not shown: `{typed_command()} logs {self._rank} --save "
                f"FILE` saves the whole log]"
            )

    def print(self, entry: LogEntry) -> None:
        sys.stdout.write(self._decoder.decode((entry.rank, entry.stream), entry.data))

    def finish(self) -> None:
        sys.stdout.write(self._decoder.rest())


class _LabelledPrinter:
    """Prints the output of several ranks line by line, each labelled with its rank."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._width = len(str(max(ranks)))
        self._unfinished: dict[tuple[int, str], bytes] = {}

    def left_out(self, size: int, lines: int) -> None:
        pass

    def print(self, entry: LogEntry) -> None:
        key = (entry.rank, entry.stream)
        *lines, rest = (self._unfinished.get(key, b"") + entry.data).split(b"\n")
        self._unfinished[key] = _last_state(rest)  # a bar has no end of line until it is done
        for line in lines:
            self._write(entry.rank, line)

    def finish(self) -> None:
        for (rank, _), line in self._unfinished.items():
            if line:
                self._write(rank, line)

    def _write(self, rank: int, line: bytes) -> None:
        # Bars of several ranks would overwrite each other, so only the last state of each is shown.
        text = _last_state(line).removesuffix(b"\r").decode(errors="replace")
        shown = for_terminal(text) if is_terminal(sys.stdout) else text
        sys.stdout.write(f"{rank:>{self._width}} │ {shown}\n")


def _last_state(line: bytes) -> bytes:
    """Return what a line shows in the end, with a carriage return if what follows replaces it."""
    text = line.rstrip(b"\r")
    return text.rpartition(b"\r")[2] + line[len(text) :][:1]


class _JsonPrinter:
    """Prints each entry as a line of JSON: `LogEntry` of the server's ``schema.json``."""

    def __init__(self) -> None:
        self._decoder = StreamDecoder()

    def left_out(self, size: int, lines: int) -> None:
        pass

    def print(self, entry: LogEntry) -> None:
        said = {
            "rank": entry.rank,
            "time": entry.time,
            "stream": entry.stream,
            "text": self._decoder.decode((entry.rank, entry.stream), entry.data),
            "run": entry.run,
            "title": entry.title,
        }
        sys.stdout.write(json.dumps(said) + "\n")

    def finish(self) -> None:
        pass


def _save_log(cluster: Cluster, ranks: Sequence[int], path: str) -> str:
    """Write a rank's whole log, as it is now, to a file, and return a sentence about it.

    Raises
    ------
    UsageError
        If the file cannot be written, or several ranks are named.
    SkyError
        If the node sends more than the log can have: it would fill the disk.
    """
    rank, *others = ranks
    if others:
        raise UsageError(
            f"--save writes the log of one rank: name one, as in `%sky logs {rank} --save {path}`."
        )
    dropped = written = 0
    # First: what an earlier call has saved is there as long as a node does not answer.
    part = cluster.log(rank, offset=0)
    whole = part.size
    try:
        with Path(path).expanduser().open("wb") as file:
            while part.data:
                dropped += part.dropped
                written += file.write(part.note + part.data)
                if written > _MOST_SAVED:
                    raise SkyError(
                        f"the node of rank {rank} sends more than a log can have: somebody may "
                        "have taken it over."
                    )
                if part.end >= whole:  # a rank that prints a lot would never be done
                    break
                part = cluster.log(rank, offset=part.end)
    except OSError as error:
        raise UsageError(f"--save {path}: {error.strerror}; name another file.") from None
    if dropped:
        return (
            f"saved the beginning and the end of the log of rank {rank} to {path}: {dropped:,} "
            "bytes between them were not kept"
        )
    return f"saved the log of rank {rank} to {path}: {part.end:,} bytes"
