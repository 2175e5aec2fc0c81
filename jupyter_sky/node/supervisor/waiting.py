"""Whether a rank's run only waits for its notebook: for calls, for items, or to be read.

A run whose notebook is gone for good would wait for ever, and keep a node that costs money.
"""

from __future__ import annotations

from collections import defaultdict

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.messages import RunRequest


class Waiting:
    """Follows the messages between the notebook and a rank in the middle of a run.

    Parameters
    ----------
    request
        The run; ``None`` before the first.
    """

    def __init__(self, request: RunRequest | None = None) -> None:
        self._serves = bool(request and request["serves"])
        self._calls: set[int] = set()
        self._wanted: defaultdict[tuple[int, int], int] = defaultdict(int)  # items, by iterator
        self._ended: set[tuple[int, int]] = set()
        self._unread = 0

    @property
    def is_for_notebook(self) -> bool:
        """Whether the rank has nothing to do, or soon has not, until the notebook says something.

        A rank asks for items before it has used up those that it has, and yields some values before
        the first is read.
        """
        waits = {call for (call, _), count in self._wanted.items() if count > 0}
        return self._calls <= waits if self._serves else self._unread > 0 or bool(waits)

    def on_tell(self, request: TellRequest) -> None:
        """Note what the notebook says."""
        place = request["number"], request["feed"]
        match request["kind"]:
            case "call":
                self._calls.add(request["number"])
            case "item":
                self._wanted[place] -= 1
            case "items_end" | "items_broken":
                self._ended.add(place)
                self._wanted.pop(place, None)
            case "more":
                self._unread -= request["number"]
            case "close":
                self._unread = 0

    def on_told(self, message: Message) -> None:
        """Note what the rank says."""
        number = message["number"]
        if message["kind"] == "ask":
            if (number, message["feed"]) not in self._ended:
                self._wanted[number, message["feed"]] += message["count"]
        elif self._serves:
            self._calls.discard(number)
            self._wanted = defaultdict(
                int, {place: count for place, count in self._wanted.items() if place[0] != number}
            )
        else:
            self._unread += 1
