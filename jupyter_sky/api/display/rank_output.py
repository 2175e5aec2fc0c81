"""The output of ranks as text: it comes in pieces, and what is too much was left out."""

from __future__ import annotations

import codecs
import re
from collections.abc import Hashable

from jupyter_sky.formatting import for_terminal, format_bytes, format_count
from jupyter_sky.transport.protocol.events import Display, Output


class StreamDecoder:
    """Decodes streams whose pieces may end within a character."""

    def __init__(self) -> None:
        self._rest: dict[Hashable, bytes] = {}

    def decode(self, stream: Hashable, data: bytes) -> str:
        """Return the text of a piece, completing a character that its stream has begun."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self._rest.pop(stream, b"") + data)
        if rest := decoder.getstate()[0]:
            self._rest[stream] = rest
        return text

    def rest(self) -> str:
        """Return what stands for characters that have no end."""
        return "".join(rest.decode(errors="replace") for rest in self._rest.values())


class TerminalDecoder(StreamDecoder):
    """Decodes streams for a terminal, which they do not command; see `for_terminal`."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[Hashable, str] = {}

    def decode(self, stream: Hashable, data: bytes) -> str:
        """Return the text of a piece, without a sequence that has begun and not ended."""
        text = self._begun.pop(stream, "") + super().decode(stream, data)
        if begun := _BEGUN.search(text):
            string, end = begun.groups()
            # Of a string, which may be an image, nothing is shown, however long it is.
            self._begun[stream] = string + end if string else begun[0]
            text = text[: begun.start()]
        return for_terminal(text)


_BEGUN = re.compile(
    r"(?:(\x1b[\]PX^_])[^\x07\x1b\x9c\n]*(\x1b?)|\x1b\[[0-?]{0,64}[ -/]{0,8}|\x1b[ -/]{0,8})\Z"
)


class OutputDecoder:
    """Decodes the output of ranks.

    Parameters
    ----------
    decoder
        Decodes each of their streams.
    """

    def __init__(self, decoder: StreamDecoder | None = None) -> None:
        self._decoder = decoder or StreamDecoder()

    def decode(self, event: Output) -> str:
        """Return the text of an event."""
        stream = (event.run, event.rank, event.stream, event.call)
        return self._decoder.decode(stream, event.data)


def gap(event: Output, command: str) -> str:
    """Return a line that replaces output skipped before an event.

    Parameters
    ----------
    event
        The event.
    command
        How commands begin where it is read: ``%sky`` or ``jupyter sky``.
    """
    if not event.skipped_bytes:
        return ""
    notice = gap_notice(event.rank, event.skipped_lines, event.skipped_bytes, command)
    return f"\n{notice}\n"


def gap_notice(rank: int, lines: int, size: int, command: str) -> str:
    """Return the line that replaces skipped output."""
    what = f"{format_count(lines, 'line')}, " if lines else ""
    where = f"`{command} logs {rank} --save FILE` has all of them"
    return f"[… {what}{format_bytes(size)} not shown here: {where} …]"


def skipped_displays(event: Display, command: str) -> str:
    """Return a line that replaces displays skipped before an event."""
    if not event.skipped:
        return ""
    return (
        f"[… {format_count(event.skipped, 'display')} not shown here: too many to show; "
        f"`{command} logs {event.rank}` has their text …]\n"
    )
