"""The end of a run's output, as text that a terminal would show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.notebook.output.decoding import OutputDecoder
from jupyter_sky.notebook.output.flood import gap, skipped_displays
from jupyter_sky.notebook.output.inplace_lines import FinalLines
from jupyter_sky.notebook.output.rank_label import label, label_width
from jupyter_sky.transport.protocol.events import Display, Output

_KEPT = 64 * 1024  # bytes, at most
_Stream = tuple[int, str]  # of a rank


@dataclass
class _Place:
    """The position of an updatable display, in bytes since the beginning of the output."""

    key: tuple[int, object]
    start: int
    end: int


class PlainOutput:
    """The end of the output of the shown ranks.

    Parameters
    ----------
    ranks
        The shown ranks. If there are several, each line begins with its rank.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._width = label_width(ranks)
        self._kept = b""
        self._dropped = 0  # number of bytes dropped before these
        self._places: list[_Place] = []
        # The last line of each stream, or its bars, until something follows below.
        self._last: dict[_Stream, FinalLines] = {}
        self._decoder = OutputDecoder()
        self._clears_next = False

    @property
    def text(self) -> str:
        """The end of the output, as far as it is kept; callable from any thread."""
        last = [(rank, lines) for (rank, _), lines in list(self._last.items()) if lines.text]
        text = "\n".join(self._labelled(rank, lines.text) for rank, lines in last)
        end = "\n" if last and last[-1][1].is_complete else ""
        # The kept output may begin in the middle of a character.
        return (self._kept + f"{text}{end}".encode())[-_KEPT:].decode(errors="ignore")

    def add(self, event: Output | Display) -> None:
        """Add output or a display of a rank."""
        if isinstance(event, Display) and event.kind == "clear":
            self._clears_next = bool(event.data.get("wait", False))
            if not self._clears_next:
                self._clear()
            return
        if self._clears_next:
            self._clear()
        if isinstance(event, Output):
            self._end_complete(event.rank, beside=event.stream)
            self._write((event.rank, event.stream), f"{gap(event)}{self._decoder.decode(event)}")
        else:
            self._end_complete(event.rank)
            self._show(event)

    def say(self, line: str) -> None:
        """Add a line that does not come from a rank."""
        self._keep(line)

    def _show(self, event: Display) -> None:
        """Keep a display, replacing the one that it updates if that is still kept."""
        if notice := skipped_displays(event).rstrip("\n"):
            self._keep(self._labelled(event.rank, notice))
        text = self._labelled(event.rank, str(event.data.get("text/plain", "")))
        identity = event.transient.get("display_id")
        key = event.rank, identity
        known = [each for each in self._places if each.key == key and each.start >= self._dropped]
        if event.kind == "update" and known:
            for place in known:
                self._replace(place, _encoded(text))
            return
        if identity:
            self._places = [each for each in self._places if each.start >= self._dropped]
            start = self._dropped + len(self._kept)
            self._places.append(_Place(key, start, start + len(_encoded(text))))
        self._keep(text)

    def _replace(self, place: _Place, data: bytes) -> None:
        start, end = place.start - self._dropped, place.end - self._dropped
        if start < 0:  # it was dropped when an earlier one became longer
            return
        longer = len(data) - (end - start)
        place.end += longer
        for each in self._places:
            if each.start > place.start:
                each.start, each.end = each.start + longer, each.end + longer
        self._set_kept(self._kept[:start] + data + self._kept[end:])

    def _set_kept(self, data: bytes) -> None:
        self._dropped += max(0, len(data) - _KEPT)
        self._kept = data[-_KEPT:]

    def _clear(self) -> None:
        self._places.clear()
        self._kept = b""
        self._last.clear()
        self._clears_next = False

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
            self._keep(self._labelled(key[0], "\n".join(lines)))

    def _labelled(self, rank: int, text: str) -> str:
        if not self._width:
            return text
        begin = label(rank, self._width)
        return "\n".join(f"{begin}{line}" for line in text.split("\n"))

    def _keep(self, text: str) -> None:
        self._set_kept(self._kept + _encoded(f"{text}\n"))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
