"""What is shown of a rank's output in a run: its limiters, by what they limit."""

from __future__ import annotations

from jupyter_sky.node.supervisor.output.display_limiter import DisplayLimiter
from jupyter_sky.node.supervisor.output.rate_limiter import RateLimiter

Source = tuple[str, int]
"""A stream, and the call that prints into it; 0 for the whole stream."""


class ShownOutput:
    """Limits what a rank shows in a run.

    Parameters
    ----------
    for_program
        Whether a program reads it.

    Attributes
    ----------
    printed
        The limiters of what it prints, by where that comes from.
    displays
        The limiter of its displays.
    """

    def __init__(self, for_program: bool) -> None:
        self.printed: dict[Source, RateLimiter] = {
            ("stdout", 0): RateLimiter(for_program=for_program),
            ("stderr", 0): RateLimiter(for_program=for_program),
        }
        self.displays = DisplayLimiter()

    def limiter(self, stream: str, call: int) -> RateLimiter | None:
        """Return the limiter of what a call prints; ``None`` if that is not shown."""
        shared = self.printed.get((stream, 0))
        if shared is None or call == 0:
            return shared
        return self.printed.setdefault((stream, call), shared.for_call())

    def forget_if_empty(self, source: Source) -> None:
        """Forget the limiter of a call that holds nothing back: there may be very many calls."""
        if source[1] and not self.printed[source].is_holding:
            del self.printed[source]
