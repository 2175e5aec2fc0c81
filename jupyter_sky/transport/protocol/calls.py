"""What a rank is told in the middle of a run; what it says there is the event `Told`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from jupyter_sky.transport.protocol.messages import NameGroup, Packed


class TellFields(TypedDict):
    """What a rank is told in the middle of a run that takes messages; it says ``Told``.

    Attributes
    ----------
    run, rank
        The run, and its rank.
    kind
        ``"call"``: carry out what is packed; ``"end"``: no call follows; ``"item"``: what is packed
        comes next in an iterator; ``"items_end"``: nothing does; ``"more"``: so many more values
        may be sent; ``"close"``: none are wanted any more.
    number
        Which call or iterator it is about; how many values, of ``"more"``.
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
    packed: Packed | None
    names: list[NameGroup]
    cells: Mapping[str, tuple[str, str]]
    timeout: float | None


class TellRequest(TellFields):
    """``tell``: tell a rank something in the middle of a run; one that is over takes no notice.

    The answer has ``missing`` as that of ``run``: the rank was not told then.
    """
