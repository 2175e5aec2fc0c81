"""The user's terminal or notebook: shows the output of ranks and answers their prompts."""

from __future__ import annotations

import sys

from jupyter_sky.api.display.rank_output import OutputDecoder, gap
from jupyter_sky.api.prompts.keyboard import has_keyboard
from jupyter_sky.cluster.runs.run import say
from jupyter_sky.cluster.runs.task import RunNotice
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.events import Display, Output

_decoder = OutputDecoder()


def write(event: Output | Display | RunNotice) -> None:
    """Write what a rank has printed, or what else the user should know."""
    if isinstance(event, RunNotice):
        say(event.text)
    if not isinstance(event, Output):
        return
    stream = sys.stderr if event.stream == "stderr" else sys.stdout
    stream.write(gap(event, "jupyter sky") + _decoder.decode(event))
    stream.flush()


def debugging() -> Debugging:
    """Return how a call that is awaited here can use the debugger."""
    return {"keyboard": has_keyboard(), "stops": False, "looks_at": None}
