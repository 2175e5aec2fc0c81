"""The end of a run's output, as text that a terminal would show."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.api.display.rank_output import (
    OutputDecoder,
    TerminalDecoder,
    gap,
    skipped_displays,
)
from jupyter_sky.cluster.snapshot import KeptOutput
from jupyter_sky.formatting import for_terminal
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.notebook.output.inplace_lines import FinalLines
from jupyter_sky.notebook.output.ranks.label import label, label_width
from jupyter_sky.transport.protocol.events import Display, Output

_KEPT = 64 * 1024  # bytes, at most, unless more are asked for
_JOINED = 4 * 1024  # bytes up to which lines of a rank are joined
_Stream = tuple[int, str]  # of a rank


@dataclass
class _Piece:
    """A part of the output of one rank; ``place`` is the id of a display that can be updated."""

    rank: int | None
    data: bytes
    place: object = None

    def joins(self, other: _Piece) -> bool:
        """Return whether it can take in what comes next."""
        is_text = self.place is None and other.place is None
        return is_text and self.rank == other.rank and len(self.data) < _JOINED


class PlainOutput:
    """The end of the output of the shown ranks.

    Parameters
    ----------
    ranks
        The shown ranks. If there are several, each line begins with its rank, and a rank that
        clears the output clears its own.
    limit
        Bytes to keep.
    """

    def __init__(self, ranks: Sequence[int], limit: int = _KEPT) -> None:
        self._limit = limit
        self._width = label_width(ranks)
        self._pieces: deque[_Piece] = deque()
        self._size, self._has_dropped = 0, False
        # The last line of each stream, or its bars, until something follows below.
        self._last: dict[_Stream, FinalLines] = {}
        self._decoder = OutputDecoder(TerminalDecoder())
        self._clears_next: set[int] = set()  # ranks that clear when they show something more

    @property
    def text(self) -> str:
        """The end of the output, as far as it is kept; callable from any thread.

        Before it, a line says where some was not kept.
        """
        kept = self.kept
        notice = "[… what was printed before this is not kept here …]\n" if kept.is_cut else ""
        return f"{notice}{kept.text}"

    @property
    def kept(self) -> KeptOutput:
        """The output as far as it is kept; callable from any thread."""
        last = [(rank, lines) for (rank, _), lines in list(self._last.items()) if lines.text]
        text = "\n".join(self._labelled(rank, lines.text) for rank, lines in last)
        end = "\n" if last and last[-1][1].is_complete else ""
        kept = b"".join(piece.data for piece in list(self._pieces))
        whole = kept + f"{text}{end}".encode()
        is_cut = self._has_dropped or len(whole) > self._limit
        # The kept output may begin in the middle of a character.
        return KeptOutput(whole[-self._limit :].decode(errors="ignore"), is_cut)

    def add(self, event: Output | Display) -> None:
        """Add output or a display of a rank."""
        if isinstance(event, Display) and event.kind == "clear":
            self._clears_next.add(event.rank)
            if not event.data.get("wait", False):
                self._clear(event.rank)
            return
        if event.rank in self._clears_next:
            self._clear(event.rank)
        if isinstance(event, Output):
            self._end_complete(event.rank, beside=event.stream)
            self._write(
                (event.rank, event.stream),
                f"{gap(event, typed_command())}{self._decoder.decode(event)}",
            )
        else:
            self._end_complete(event.rank)
            self._show(event)

    def say(self, line: str) -> None:
        """Add a line that does not come from a rank."""
        self._keep(None, line)

    def _show(self, event: Display) -> None:
        """Keep a display, replacing the one that it updates if that is still kept."""
        if notice := skipped_displays(event, typed_command()).rstrip("\n"):
            self._keep(event.rank, self._labelled(event.rank, notice))
        said = for_terminal(str(event.data.get("text/plain", "")))
        text = self._labelled(event.rank, said)
        place = event.transient.get("display_id")
        pieces = self._pieces if place and event.kind == "update" else ()
        known = [each for each in pieces if (each.rank, each.place) == (event.rank, place)]
        for piece in known:
            self._size -= len(piece.data)
            piece.data = _encoded(f"{text}\n")
            self._size += len(piece.data)
        if not known:
            self._keep(event.rank, text, place)
        self._drop_oldest()

    def _clear(self, rank: int) -> None:
        """Remove what a rank has shown."""
        self._clears_next.discard(rank)
        self._pieces = deque(each for each in self._pieces if each.rank != rank)
        self._size = sum(len(each.data) for each in self._pieces)
        self._has_dropped = self._has_dropped and bool(self._pieces)
        self._last = {key: lines for key, lines in self._last.items() if key[0] != rank}

    def _write(self, key: _Stream, text: str) -> None:
        lines = self._last.setdefault(key, FinalLines())
        self._keep_lines(key, lines.draw(text))
        if lines.is_empty:
            del self._last[key]

    def _end_complete(self, rank: int, beside: str = "") -> None:
        """Finish complete lines of a rank's other streams: new output goes below."""
        for key in list(self._last):
            if key[0] == rank and key[1] != beside and self._last[key].is_complete:
                self._keep_lines(key, self._last.pop(key).end())

    def _keep_lines(self, key: _Stream, lines: list[str]) -> None:
        if lines:
            self._keep(key[0], self._labelled(key[0], "\n".join(lines)))

    def _labelled(self, rank: int, text: str) -> str:
        if not self._width:
            return text
        begin = label(rank, self._width)
        return "\n".join(f"{begin}{line}" for line in text.split("\n"))

    def _keep(self, rank: int | None, text: str, place: object = None) -> None:
        data = _encoded(f"{text}\n")
        piece = _Piece(rank, data, place)
        if self._pieces and self._pieces[-1].joins(piece):
            self._pieces[-1].data += data
        else:
            self._pieces.append(piece)
        self._size += len(data)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop what there is no room for."""
        while (excess := self._size - self._limit) > 0:
            first = self._pieces[0]
            dropped = min(excess, len(first.data))
            self._size -= dropped
            self._has_dropped = True
            first.data, first.place = first.data[dropped:], None
            if not first.data:
                self._pieces.popleft()


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
