"""Messages to a rank in the middle of a run; those from it are `Told` events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.protocol.messages import NameGroup

AHEAD = 16
"""Values that are sent, or items that are asked for, before the first of them is used."""


class TellFields(TypedDict):
    """A message to a rank in the middle of a run.

    Attributes
    ----------
    run, rank
        The run, and its rank.
    kind
        ``"call"``: carry out the packed call; ``"end"``: no call follows; ``"item"``: the packed
        item is next in an iterator; ``"items_end"``: the iterator is exhausted; ``"items_broken"``:
        the iterator has failed; ``"more"``: one more value may be sent; ``"close"``: no more
        values are wanted; ``"cancel"``: stop the call at once.
    number
        Which of several calls it is about; 0 in a run that does not serve calls.
    feed
        Which of the call's iterators it is about.
    packed
        The pickled call, or item.
    names
        The names that the rank needs for the call.
    cells
        The notebook's cells that define functions in it: by file name, text and title.
    timeout
        Seconds that a call may take.
    """

    run: str
    rank: int
    kind: str
    number: int
    feed: int
    packed: Packed | None
    names: list[NameGroup]
    cells: Mapping[str, tuple[str, str]]
    timeout: float | None


class TellRequest(TellFields):
    """``tell``: send a rank a message in the middle of a run; ignored if the run is over.

    If the answer has ``missing``, as for ``run``, the message was not delivered.
    """
