"""Limits the displays of a rank to as many figures and tables as a notebook can hold.

A page becomes slow with thousands of them, and each is kept on the node for a disconnected
notebook. As with printed output (`rate_limiter`) there may be gaps, each of which says how much was
left out, and the last display is always shown. What clears the output is never held back: whatever
is printed after it stays.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from jupyter_sky.node.supervisor.output.rate_limiter import TokenBucket
from jupyter_sky.transport.frames import Message, encode

BURST = 64 * 1024 * 1024
"""Bytes of displays that are shown at once, whatever the rate."""

RATE = 1024 * 1024
"""Bytes a second that are shown after that."""

EACH = 64 * 1024
"""Bytes that a display counts for beside its own: each is an element of the page."""

KEPT = 8
"""How many of those that are left out are kept, so that the last ones can be shown."""

_KEPT_BYTES = 16 * 1024 * 1024


class DisplayLimiter:
    """Passes the displays of a run on, or only the last of them if there are too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._bucket = TokenBucket(BURST, RATE, clock)
        self._held: deque[tuple[Message, int]] = deque()
        self._held_bytes = 0
        self._skipped = 0

    @property
    def is_holding(self) -> bool:
        """Whether something is held back."""
        return bool(self._held)

    @property
    def delay(self) -> float:
        """Seconds until what is held back may be shown."""
        return self._bucket.delay(min(self._held_bytes, BURST // 2))

    def feed(self, message: Message) -> list[Message]:
        """Return what to show now that a rank has sent a `Display` event."""
        if message["kind"] == "clear":
            # Earlier displays are cleared, seen or not.
            self._forget()
            return [message]
        size = len(encode(message)) + EACH
        # A display larger than the whole limit passes, too, if nothing came before it.
        if not self.is_holding and self._bucket.tokens > 0:
            self._bucket.take(size)
            return [message]
        self._hold(message, size)
        return self.release() if self._bucket.tokens >= BURST / 2 else []

    def release(self) -> list[Message]:
        """Return what is held back."""
        shown = [message for message, _ in self._held]
        if shown and self._skipped:
            shown[0] = {**shown[0], "skipped": self._skipped}
        self._bucket.take(self._held_bytes)
        self._forget()
        return shown

    def _forget(self) -> None:
        self._held.clear()
        self._held_bytes, self._skipped = 0, 0

    def _hold(self, message: Message, size: int) -> None:
        if message["kind"] == "update":
            self._forget_earlier(message)
        self._held.append((message, size))
        self._held_bytes += size
        while len(self._held) > 1 and (
            len(self._held) > KEPT or self._held_bytes > _KEPT_BYTES + EACH * KEPT
        ):
            self._skipped += 1
            self._held_bytes -= self._held.popleft()[1]

    def _forget_earlier(self, update: Message) -> None:
        """Drop held events of the same display, which the update replaces."""
        identity = update["transient"].get("display_id")
        for index, (message, size) in enumerate(self._held):
            if identity and message["transient"].get("display_id") == identity:
                update["kind"] = message["kind"]  # a display that was never shown cannot be updated
                del self._held[index]
                self._held_bytes -= size
                return
