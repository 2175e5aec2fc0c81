"""What a rank is told in the middle of a run; what it says there is the event `Told`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from jupyter_sky.transport.protocol.messages import NameGroup, Packed

AHEAD = 16
"""Values that are sent, or items that are asked for, before the first of them is used."""


class TellFields(TypedDict):
    """What a rank is told in the middle of a run that takes messages; it says ``Told``.

    Attributes
    ----------
    run, rank
        The run, and its rank.
    kind
        ``"call"``: carry out what is packed; ``"end"``: no call follows; ``"item"``: what is packed
        comes next in an iterator; ``"items_end"``: nothing does; ``"items_broken"``: it has more,
        and does not give them; ``"more"``: so many more values may be sent; ``"close"``: none are
        wanted any more; ``"cancel"``: the call is not, and is stopped at once.
    number
        Which call it is about, of several; how many values, of ``"more"``.
    feed
        Which of the call's iterators it is about.
    packed
        The pickled call, or item.
    names
        The names that the rank needs for it.
    cells
        The notebook's cells that functions in it come from: by file name, text and title.
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
    """``tell``: tell a rank something in the middle of a run; one that is over takes no notice.

    The answer has ``missing`` as that of ``run``: the rank was not told then.
    """
