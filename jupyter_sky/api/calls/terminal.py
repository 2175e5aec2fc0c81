"""The user's terminal or notebook: shows the output of ranks and answers their prompts."""

from __future__ import annotations

import sys

from jupyter_sky.api.calls.feeds import Feeder
from jupyter_sky.api.display.displays import parts_of, publish, wants_safe
from jupyter_sky.api.display.rank_output import (
    OutputDecoder,
    TerminalDecoder,
    gap,
    skipped_displays,
)
from jupyter_sky.api.display.safe_display import left_out_notice, safe_parts
from jupyter_sky.api.display.wording import shell_here, worded
from jupyter_sky.api.prompts.keyboard import has_keyboard
from jupyter_sky.api.prompts.prompter import Prompter
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.run import say
from jupyter_sky.cluster.runs.task import HangNotice, RunNotice
from jupyter_sky.formatting import for_terminal
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.events import Display, Output

_decoder = OutputDecoder(TerminalDecoder())


def follow(run: RunHandle, feeder: Feeder, timeout: float | None) -> None:
    """Follow a call until it is over: show what its ranks print, feed them, and ask the user."""
    run.follow(
        write,
        timeout=timeout,
        told=feeder.on_ask,
        hang=write,
        ask=Prompter(run),
        tick=feeder.feed,
    )


def write(event: Output | Display | RunNotice | HangNotice) -> None:
    """Write what a rank has printed, or what else the user should know."""
    if isinstance(event, RunNotice | HangNotice):
        say(worded(event.text))
    if isinstance(event, Display):
        _show(event)
    if not isinstance(event, Output):
        return
    stream = sys.stderr if event.stream == "stderr" else sys.stdout
    stream.write(gap(event, "jupyter sky") + _decoder.decode(event))
    stream.flush()


def _show(event: Display) -> None:
    """Show what a rank displays; it may not clear the cell, where others have output too."""
    if event.kind == "clear":
        return
    sys.stdout.write(skipped_displays(event, "jupyter sky"))
    place, data, metadata = parts_of(event)
    shell = shell_here()
    if not hasattr(shell, "kernel"):
        if text := data.get("text/plain"):
            sys.stdout.write(f"{for_terminal(str(text))}\n")
        sys.stdout.flush()
        return
    if wants_safe(shell):
        data, metadata, left_out = safe_parts(data, metadata)
        if left_out:
            sys.stdout.write(left_out_notice(left_out, '%config Sky.display = "safe"'))
    sys.stdout.flush()
    if data:
        publish(shell, event, place, data, metadata)


def debugging() -> Debugging:
    """Return how a call that is awaited here can use the debugger."""
    return {"keyboard": has_keyboard(), "stops": False, "looks_at": None}
