"""The messages between a running call and the notebook: yielded values and requested items.

Neither side runs ahead of the other by more than a few values or megabytes: the rank waits until
the notebook has taken earlier values, and requests items as it uses them up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank import streams
from jupyter_sky.node.rank.calls.parts import RankParts
from jupyter_sky.serialization import blobs, cell_sources
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.protocol.calls import AHEAD, TellFields
from jupyter_sky.transport.protocol.events import Told

_BYTES_AHEAD = 8 * 1024 * 1024


class RankConversation:
    """The notebook, from the perspective of a call on a rank.

    Parameters
    ----------
    rank
        The rank.
    run
        The run.
    number
        Which of the run's calls it is.
    tell, wait
        Send a message to the notebook, and wait for its next message to this call (``None`` if no
        more will come); by default, those of the rank's main thread.
    """

    def __init__(
        self,
        rank: RankParts,
        run: str,
        number: int = 0,
        tell: Callable[[Told], object] | None = None,
        wait: Callable[[], TellFields | None] | None = None,
    ) -> None:
        self._rank = rank
        self._run = run
        self._number = number
        self._tell = tell or rank.tell
        self._next_told = wait or (lambda: rank.inbox.next_told(run))
        self._is_broken = False
        self._sent: deque[int] = deque()  # sizes of the values that were not taken yet
        self._is_closed = False
        self._items: dict[int, deque[Packed]] = defaultdict(deque)
        self._ended: set[int] = set()
        self._taken = 0  # messages from the notebook

    def send(self, value: Any) -> bool:
        """Send a yielded value; return ``False`` if no more are wanted."""
        packed = self._rank.namespace.pack(value, self._run, [self._rank.rank])
        self._sent.append(blobs.size(packed))
        streams.flush()
        self._tell(Told(self._rank.rank, self._run, "value", self._number, packed))
        while told := self._rank.inbox.next_told(self._run, waits=False):
            self._take_notice(told)
        while not self._is_closed and self._is_ahead():
            self._wait()
        return not self._is_closed

    def items(self, number: int) -> Iterator[Any]:
        """Yield the items of an iterator of the notebook.

        Raises
        ------
        SkyError
            If the iterator has failed.
        """
        items, asked, position = self._items[number], 0, 0
        largest = _BYTES_AHEAD  # one at a time until the first has arrived
        while True:
            room = max(1, min(AHEAD, _BYTES_AHEAD // largest))
            if asked <= room // 2 and number not in self._ended:
                count, asked = room - asked, room
                rank, run = self._rank.rank, self._run
                self._tell(Told(rank, run, "ask", self._number, feed=number, count=count))
            while not items and number not in self._ended and not self._is_closed:
                self._wait()
            if not items:
                if self._is_broken:
                    # A function that took this for the end would go on as if it had seen all items.
                    raise SkyError("the iterator gives no more items: its call was stopped.")
                return
            packed = items.popleft()
            asked -= 1
            largest = max(largest if position else 1, blobs.size(packed))
            place, item = blobs.unpack(packed, self._rank.folder)
            if place != position:
                raise RuntimeError(f"item {position} was lost on its way to the rank")
            position += 1
            yield item

    def _is_ahead(self) -> bool:
        return len(self._sent) >= AHEAD or (sum(self._sent) >= _BYTES_AHEAD)

    def _wait(self) -> None:
        # The agent has to know: a run that waits for a notebook that is gone keeps no node.
        self._say("waits", self._taken)
        try:
            told = self._next_told()
        except BaseException:  # its time is over, or the user has pressed Stop
            self._say("goes_on")
            raise
        if told is None:
            self._is_closed = self._is_broken = True
            self._say("goes_on")
        else:
            self._take_notice(told)

    def _say(self, kind: str, count: int = 0) -> None:
        self._tell(Told(self._rank.rank, self._run, kind, self._number, count=count))

    def _take_notice(self, told: TellFields) -> None:
        self._taken += 1
        match told["kind"]:
            case "more" if self._sent:
                self._sent.popleft()
            case "item" if told["packed"] is not None:
                cell_sources.register(told["cells"])
                if told["names"]:
                    self._rank.namespace.receive(told["names"])
                self._items[told["feed"]].append(told["packed"])
            case "items_end":
                self._ended.add(told["feed"])
            case "close":
                self._is_closed = True
            case "items_broken":
                self._is_closed = self._is_broken = True
