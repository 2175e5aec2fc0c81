"""Whether a rank's run only waits for its notebook: for calls, for items, or to be read.

A run whose notebook is gone for good would wait for ever, and keep a node that costs money. Only
the rank knows when it waits: it asks for items long before it has used up those that it has, and
goes on after values that nobody has read. So it says "waits" each time, and how many messages it
has had until then: if the agent has sent it more by then, it does not wait any longer. It says
"goes_on" if a time-out or Stop has ended its wait, after which it may clean up for long.
"""

from __future__ import annotations

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.messages import RunRequest

_NOT_FOR_CALLS = ("call", "end", "cancel")


class Waiting:
    """Follows the messages between the notebook and a rank in the middle of a run.

    Parameters
    ----------
    request
        The run; ``None`` before the first.

    Attributes
    ----------
    client
        The notebook that began it.
    """

    def __init__(self, request: RunRequest | None = None) -> None:
        self.client = request["client"] if request else ""
        serves = request and request["serves"]
        self._at_once = serves["concurrency"] if serves else None
        self._calls: set[int] = set()
        self._sent: dict[int, int] = {}  # how many messages, to each call
        self._taken: dict[int, int] = {}  # by calls that have waited

    @property
    def is_for_notebook(self) -> bool:
        """Whether the rank has nothing to do until the notebook says something."""
        waits = sum(self._sent.get(each, 0) == taken for each, taken in self._taken.items())
        if self._at_once is None:
            return waits > 0
        return waits >= min(self._at_once, len(self._calls))

    def on_tell(self, request: TellRequest) -> None:
        """Note what the notebook says."""
        number = request["number"]
        if request["kind"] == "call":
            self._calls.add(number)
        elif request["kind"] not in _NOT_FOR_CALLS:
            self._sent[number] = self._sent.get(number, 0) + 1

    def on_told(self, message: Message) -> None:
        """Note what the rank says."""
        number = message["number"]
        if message["kind"] == "waits":
            self._taken[number] = message["count"]
        elif message["kind"] == "goes_on":
            self._taken.pop(number, None)
        elif self._at_once is not None and message["kind"] != "ask":
            self._calls.discard(number)
            self._taken.pop(number, None)
            self._sent.pop(number, None)
