"""Renders the output of ranks into the cell that follows the run."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.displays import parts_of, publish
from jupyter_sky.api.display.rank_output import (
    OutputDecoder,
    TerminalDecoder,
    gap,
    skipped_displays,
)
from jupyter_sky.api.display.safe_display import left_out_notice, safe_parts
from jupyter_sky.formatting import for_terminal
from jupyter_sky.notebook.kernel import typed_command
from jupyter_sky.notebook.output.bottom_line import BottomLine
from jupyter_sky.notebook.output.fitted_line import FittedLine
from jupyter_sky.notebook.output.flood import FloodEnd
from jupyter_sky.notebook.output.inplace_lines import FinalLines, InPlaceLines, overwriting_start
from jupyter_sky.notebook.output.ranks.label import label, label_width
from jupyter_sky.notebook.output.ranks.order import RankOrder
from jupyter_sky.notebook.output.ranks.outputs import RankOutputs
from jupyter_sky.transport.protocol.events import Display, Output

_LONGEST_LINE = 1000  # most characters of an unfinished line to keep, in case it becomes a bar
_MOST = 4 * 2**20  # characters that are printed into a cell: page and kernel keep all of them
_PATIENCE = 0.5  # seconds after which a bar is over that another one may follow, and go back up to

# The first carriage return has to stay, since it overwrites what was shown before this text. Text
# with an escape sequence in it or behind it stays, since that may move to another line, and so does
# what only ends with a carriage return: nothing has overwritten it yet.
_OVERWRITTEN = re.compile(r"(?<=\r)[^\r\n\x1b]*\r(?=[^\r\n\x1b])")

# What moves the cursor or hides it, which has no meaning below a label.
_CURSOR = re.compile(r"\x1b\[(?:\?25[hl]|\d*[A-HJK])")


class Renderer:
    """Renders the events of one run.

    Parameters
    ----------
    shell
        The shell of the notebook.
    ranks
        The ranks whose output is shown. If there are several, each line begins with its rank, and
        a rank that clears the output clears its own.
    is_safe
        Whether to display nothing that could run code in the page.
    on_clear
        Restores what was above the output, if anything, after the output was cleared.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        ranks: Sequence[int],
        is_safe: bool = False,
        on_clear: Callable[[], None] | None = None,
    ) -> None:
        self._shell = shell
        self._is_safe = is_safe
        self._on_clear = on_clear
        self._clears_next: set[int] = set()  # ranks that clear when they show something more
        self._left_out: set[str] = set()
        self._order = RankOrder(ranks)
        self._kept = RankOutputs()  # in a notebook
        self._last_stream: Any = None
        self._width = label_width(ranks)
        self._unfinished: dict[tuple[int, str], str] = {}
        self._lines: dict[tuple[int, str], FinalLines] = {}  # of several ranks
        self._drawn: dict[tuple[int, str], float] = {}  # when something was last added to these
        self._bottom = None if hasattr(shell, "kernel") else BottomLine()
        self._decoder = OutputDecoder(TerminalDecoder() if self._bottom else None)
        self._fitted: dict[str, FittedLine] = {}  # of one rank in a terminal
        self._bars: dict[str, InPlaceLines] = {}
        self._floods: dict[tuple[int, str], FloodEnd] = {}
        self._printed = 0  # characters, since the cell was cleared
        self._unflushed = False

    def render(self, event: Output | Display, flush: bool = True) -> None:
        """Show one event, at once if ``flush`` is set."""
        for each in self._order.add(event) if self._width else (event,):
            self._take(each)
        self._unflushed = True
        if flush:
            self.flush()

    def _take(self, event: Output | Display) -> None:
        """Show an event in its turn."""
        if isinstance(event, Display) and event.kind == "clear":
            self._clears_next.add(event.rank)
            if not event.data.get("wait", False):
                self._clear_rank(event.rank, wait=False)
            return
        if event.rank in self._clears_next:
            self._clear_rank(event.rank, wait=True)
        text = _overwritten(self._decoder.decode(event)) if isinstance(event, Output) else ""
        if hasattr(self._shell, "kernel"):
            self._kept.add(event, text)
            if self._kept.is_outdated:
                return
        self._render(event, text)

    def _render(self, event: Output | Display, text: str) -> None:
        if isinstance(event, Display):
            self._display(event)
        else:
            self._print(event, text)

    def show_overdue(self) -> None:
        """Show displays and bars that have waited long enough; to be called repeatedly."""
        if overdue := list(self._order.overdue()):
            for event in overdue:
                self._take(event)
            self._unflushed = True
        until = time.monotonic() - _PATIENCE
        for key, lines in list(self._lines.items()):
            if lines.is_complete and self._drawn[key] < until:
                self._end_lines(key)
        self.flush()

    def finish(self) -> None:
        """Show unfinished lines, and the final state of bars."""
        for event in self._order.finish():
            self._take(event)
        self.flush(waits=False)
        for key in list(self._lines):
            self._end_lines(key)
        self._unfinished.clear()
        for stream in list(self._bars):
            self._end_bars(stream)
        for stream, line in self._fitted.items():
            self._write_to(stream, line.end())
        self._fitted.clear()
        self.flush()
        self._floods.clear()

    def flush(self, waits: bool = True) -> None:
        """Flush stdout and stderr, if anything was written since the last time.

        Parameters
        ----------
        waits
            Whether a cell that was cleared, or the end of a flood, may be drawn some moments later.
            If not, something else is printed next, for which a terminal's bar makes room.
        """
        if self._kept.is_due or (self._kept.is_outdated and not waits):
            self._draw_again()
        if self._unflushed:
            sys.stdout.flush()
            sys.stderr.flush()
        for flood in self._floods.values():
            flood.show(waits, len(self._floods))
        self._unflushed = False
        if self._bottom:
            self._bottom.show(self._moving_bar() if waits else "")

    def _clear_rank(self, rank: int, wait: bool) -> None:
        """Clear what a rank has shown, when `flush` is called next."""
        self._clears_next.discard(rank)
        if hasattr(self._shell, "kernel"):
            self._kept.clear(rank)
        elif not self._width:  # a terminal clears only an unfinished line, which several ranks lack
            self._clear_cell(wait)

    def _draw_again(self) -> None:
        """Clear the cell, and show again what the ranks have not cleared."""
        again = self._kept.draw()
        self._clear_cell(wait=bool(again))
        for event, text in again:
            self._render(event, text)
        self._unflushed = True

    def _clear_cell(self, wait: bool) -> None:
        """Clear the cell, except what is above its output."""
        self._bars.clear()
        self._unfinished.clear()
        self._lines.clear()
        self._floods.clear()
        self._printed = 0
        # With `wait` if something follows at once, so that the page keeps its height.
        self._shell.display_pub.clear_output(wait=wait or self._on_clear is not None)
        if self._on_clear:
            self._on_clear()

    def _print(self, event: Output, text: str) -> None:
        key = (event.rank, event.stream)
        flood = self._floods.get(key)
        # A terminal cannot replace its output: print a notice for each gap.
        is_too_much = event.skipped_bytes or self._printed > _MOST
        if flood is None and is_too_much and hasattr(self._shell, "kernel"):
            flood = self._floods[key] = self._begin_flood(event)
        if flood is not None:
            flood.add(event, text)
        else:
            self._write(event, f"{gap(event, typed_command())}{text}")

    def _begin_flood(self, event: Output) -> FloodEnd:
        """End the line in which a gap began; bars go on where they are."""
        key = (event.rank, event.stream)
        if key in self._lines:
            self._end_lines(key)
        bars = self._bars.pop(event.stream, None)
        if not bars and self._unfinished.get(key):
            self._write(event, "\n")
        self.flush()
        return FloodEnd(self._shell, self._label(event.rank), bars)

    def _write(self, event: Output, text: str) -> None:
        key = (event.rank, event.stream)
        if not self._width:
            self._end_complete_bars(event.stream)
            text = self._draw_in_place(event, text)
            self._write_to(event.stream, text)
            line = (self._unfinished.get(key, "") + text).rpartition("\n")[2]
            self._unfinished[key] = line[-_LONGEST_LINE:]
            return
        # Bars of several ranks would draw over each other, so only the last state of each is shown.
        # While they move, the panel shows them, and a terminal the first at its bottom.
        self._end_complete_lines(event.rank, beside=event.stream)
        lines = self._lines.setdefault(key, FinalLines())
        self._write_lines(key, lines.draw(text))
        self._drawn[key] = time.monotonic()
        if lines.is_empty:
            del self._lines[key]

    def _moving_bar(self) -> str:
        """Return the present bar of the first of several ranks that has one."""
        bars = ((key[0], self._lines[key].bar) for key in sorted(self._lines))
        return next((f"{self._label(rank)}{bar}" for rank, bar in bars if bar), "")

    def _write_lines(self, key: tuple[int, str], lines: Sequence[str]) -> None:
        """Write lines of one of several ranks."""
        label = self._label(key[0])
        self._write_to(key[1], "".join(f"{label}{_CURSOR.sub('', line)}\n" for line in lines))

    def _end_lines(self, key: tuple[int, str]) -> None:
        """Write what may still change of a stream of one of several ranks."""
        self._unflushed = True
        self._write_lines(key, self._lines.pop(key).end())

    def _end_complete_lines(self, rank: int, beside: str = "") -> None:
        """Finish complete bars of a rank's other streams: new output goes below."""
        for key in ((rank, "stdout"), (rank, "stderr")):
            if key[1] != beside and key in self._lines and self._lines[key].is_complete:
                self._end_lines(key)

    def _write_to(self, name: str, text: str) -> None:
        """Write to one of the notebook's streams, after everything written to the other."""
        if not text:
            return
        if self._bottom:
            self._bottom.erase()
        stream = self._stream(name)
        if self._last_stream not in (None, stream):
            self._last_stream.flush()
        self._last_stream = stream
        self._printed += len(text)
        stream.write(text)

    def _end_complete_bars(self, stream: str) -> None:
        """Finish complete bars of the other stream: new output goes below."""
        for other in [each for each in self._bars if each != stream]:
            if self._bars[other].is_complete:
                self._end_bars(other)

    def _end_bars(self, stream: str) -> None:
        """Let bars stay as they are: new output goes below."""
        bars = self._bars.pop(stream)
        bars.end()
        self._printed += len(bars.block.text)

    def _draw_in_place(self, event: Output, text: str) -> str:
        """Draw overwriting lines, and return the rest; a terminal draws these by itself."""
        if self._bottom:
            stream = self._stream(event.stream)
            return self._fitted.setdefault(event.stream, FittedLine(stream)).fit(text)
        bars = self._bars.get(event.stream)
        if bars is None:
            if (start := overwriting_start(text)) is None:
                return text
            stream, line = self._stream(event.stream), ""
            if start:
                self._write_to(event.stream, text[:start])
            elif line := self._unfinished.pop((event.rank, event.stream), ""):
                stream.write(f"\r{' ' * len(line)}\r")  # the block begins with this line
            self.flush()
            text = text[start:]
            bars = self._bars[event.stream] = InPlaceLines(self._shell, line)
        rest = bars.draw(text)
        if bars.over:
            self._end_bars(event.stream)
            rest = self._draw_in_place(event, rest)
        return rest

    def _label(self, rank: int) -> str:
        return label(rank, self._width)

    @staticmethod
    def _stream(name: str) -> Any:
        return sys.stderr if name == "stderr" else sys.stdout

    def _display(self, event: Display) -> None:
        self._end_complete_lines(event.rank)
        self.flush()
        if self._bottom:
            self._bottom.erase()
        if event.skipped:
            sys.stdout.write(skipped_displays(event, typed_command()))
            self.flush()
        place, data, metadata = parts_of(event)
        if self._bottom and "text/plain" in data:
            data = {**data, "text/plain": for_terminal(str(data["text/plain"]))}
        if self._width and data.keys() == {"text/plain"}:
            text = str(data["text/plain"])
            lines = [f"{self._label(event.rank)}{line}" for line in text.splitlines()]
            if not place:
                self._write_to("stdout", "".join(f"{line}\n" for line in lines))
                return
            data = {"text/plain": "\n".join(lines)}
        elif self._width and event.kind != "update":
            name = f"rank {event.rank}"
            label = {"text/plain": name, "text/html": f"<strong>{name}</strong>"}
            self._shell.display_pub.publish(data=label, metadata={})
        if self._is_safe:
            data, metadata, left_out = safe_parts(data, metadata)
            self._report_left_out(left_out)
            if not data:
                return
        publish(self._shell, event, place, data, metadata)

    def _report_left_out(self, kinds: Collection[str]) -> None:
        """Report once for each kind of data that it is not shown."""
        if new := set(kinds) - self._left_out:
            self._left_out.update(new)
            sys.stdout.write(left_out_notice(new, "--display safe"))
            self.flush()


def _overwritten(text: str) -> str:
    """Return text without the earlier states of a bar, which a carriage return overwrites."""
    if "\r" not in text:
        return text
    return _OVERWRITTEN.sub("", text)
