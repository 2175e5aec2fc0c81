"""Rendering of what ranks print and display, into the cell that started the run."""

from __future__ import annotations

import base64
import codecs
import re
import sys
from collections.abc import Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.notebook.output.inplace_lines import InPlaceLines, beginning
from jupyter_sky.transport.events import Display, Output


class Renderer:
    """Renders the events of one run.

    Parameters
    ----------
    shell
        The shell of the notebook.
    ranks
        The ranks whose output is shown. If there are several, each line says whose it is.
    """

    def __init__(self, shell: InteractiveShell, ranks: Sequence[int]) -> None:
        self._shell = shell
        self._width = len(str(max(ranks, default=0))) if len(ranks) > 1 else 0
        self._decoders: dict[tuple[int, str], Any] = {}
        self._unfinished: dict[tuple[int, str], str] = {}
        self._bars: dict[str, InPlaceLines] = {}
        self._unflushed = False

    def render(self, event: Output | Display, flush: bool = True) -> None:
        """Show one event, at once if ``flush`` is set."""
        if isinstance(event, Display):
            self._display(event)
        else:
            self._write(event, f"{_gap(event)}{_overwritten(self._decode(event))}")
        self._unflushed = True
        if flush:
            self.flush()

    def finish(self) -> None:
        """Show what has no end of line yet."""
        for (rank, stream), text in self._unfinished.items():
            if text and self._width:
                self._unflushed = True
                self._stream(stream).write(f"{self._label(rank)}{text}\n")
        self._unfinished.clear()
        for bars in self._bars.values():
            bars.show()
        self._bars.clear()
        self.flush()

    def flush(self) -> None:
        """Have the frontend show it now, if there is anything."""
        if self._unflushed:
            sys.stdout.flush()
            sys.stderr.flush()
        self._unflushed = False

    def _decode(self, event: Output) -> str:
        # A character can be cut in two by the end of a piece.
        key = (event.rank, event.stream)
        decoder = self._decoders.get(key)
        if decoder is None:
            decoder = self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return str(decoder.decode(event.data))

    def _write(self, event: Output, text: str) -> None:
        key = (event.rank, event.stream)
        if not self._width:
            text = self._draw(event, text)
            self._stream(event.stream).write(text)
            self._unfinished[key] = (self._unfinished.get(key, "") + text).rpartition("\n")[2][
                -1000:
            ]
            return
        *lines, rest = (self._unfinished.get(key, "") + text).split("\n")
        self._unfinished[key] = rest
        # Bars of several ranks would draw over each other: each is shown when it is full. While
        # they move, the panel has them.
        label = self._label(event.rank)
        ends = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
        self._stream(event.stream).write("".join(f"{label}{line}\n" for line in ends))

    def _draw(self, event: Output, text: str) -> str:
        """Draw what is to be drawn over, and return the rest; a terminal does that by itself."""
        bars = self._bars.get(event.stream)
        if bars is None:
            start = beginning(text) if hasattr(self._shell, "kernel") else None
            if start is None:
                return text
            stream, line = self._stream(event.stream), ""
            if start:
                stream.write(text[:start])
            elif line := self._unfinished.pop((event.rank, event.stream), ""):
                stream.write(f"\r{' ' * len(line)}\r")  # it goes on in the block
            self.flush()
            text = text[start:]
            bars = self._bars[event.stream] = InPlaceLines(self._shell, line)
        rest = bars.draw(text)
        if bars.over:
            del self._bars[event.stream]
            rest = self._draw(event, rest)
        return rest

    def _label(self, rank: int) -> str:
        return f"{rank:>{self._width}} │ " if self._width else ""

    @staticmethod
    def _stream(name: str) -> Any:
        return sys.stderr if name == "stderr" else sys.stdout

    def _display(self, event: Display) -> None:
        self.flush()
        if event.kind == "clear":
            self._shell.display_pub.clear_output(wait=event.data.get("wait", False))
            return
        if self._width and event.kind != "update":
            if event.data.keys() == {"text/plain"}:
                lines = str(event.data["text/plain"]).splitlines()
                sys.stdout.write("".join(f"{self._label(event.rank)}{line}\n" for line in lines))
                return
            sys.stdout.write(f"{self._label(event.rank)}\n")
            self.flush()
        self._shell.display_pub.publish(
            data={kind: _text(value) for kind, value in event.data.items()},
            metadata=event.metadata,
            transient=event.transient,
            update=event.kind == "update",
        )


def _gap(event: Output) -> str:
    if not event.skipped_bytes:
        return ""
    lines, size = event.skipped_lines, event.skipped_bytes
    what = f"{lines:,} lines, " if lines else ""
    where = f"`%sky logs {event.rank} --save FILE` has all of them"
    return f"\n[… {what}{size / 1e6:,.1f} MB not shown here: {where} …]\n"


def _overwritten(text: str) -> str:
    """Leave out what a carriage return overwrites at once: the former states of a bar."""
    if "\r" not in text:
        return text
    return _OVERWRITTEN.sub("", text)


# Of the states of a line that come in one piece, the last counts; the first return has to stay,
# as it overwrites what was shown before. An escape may lead to another line.
_OVERWRITTEN = re.compile(r"(?<=\r)[^\r\n\x1b]*\r(?!\n)")


def _text(value: Any) -> Any:
    """Return image bytes as notebooks hold them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
