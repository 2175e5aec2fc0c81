"""Rendering of what ranks print and display, into the cell that started the run."""

from __future__ import annotations

import base64
import codecs
import re
import sys
from collections.abc import Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

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
            if text:
                self._unflushed = True
                self._stream(stream).write(f"{self._label(rank)}{text}\n")
        self._unfinished.clear()
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
        if not self._width:
            self._stream(event.stream).write(text)
            return
        key = (event.rank, event.stream)
        *lines, rest = (self._unfinished.get(key, "") + text).split("\n")
        self._unfinished[key] = rest
        label = self._label(event.rank)
        self._stream(event.stream).write("".join(f"{label}{line}\n" for line in lines))

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
    return f"\n[… {what}{size / 1e6:,.1f} MB not shown here: `%sky logs {event.rank}` has them …]\n"


def _overwritten(text: str) -> str:
    """Leave out what a carriage return overwrites at once: the former states of a bar."""
    if "\r" not in text:
        return text
    return _OVERWRITTEN.sub("", text)


# Of the states of a line that come in one piece, the last counts; the first return has to stay,
# as it overwrites what was shown before.
_OVERWRITTEN = re.compile(r"(?<=\r)[^\r\n]*\r(?!\n)")


def _text(value: Any) -> Any:
    """Return image bytes as notebooks hold them."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
