"""What a run is to do, and what is told of it while it goes on, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.serialization.cell_sources import Cells
from jupyter_sky.transport.protocol.messages import Packed


@dataclass(frozen=True)
class CellPlace:
    """Where a cell's code stands, as its tracebacks say it.

    Attributes
    ----------
    title
        What its cell is called in the notebook, like ``In[3]``.
    above
        Lines of the cell that stand above it, like that of the magic.
    """

    title: str = ""
    above: int = 0


@dataclass(frozen=True)
class Task:
    """What ranks should do: a cell's ``code``, or a packed ``call``.

    Attributes
    ----------
    ranks
        The ranks that do it.
    cells
        The notebook's cells that functions in ``call`` come from.
    place
        Where ``code`` stands in the notebook.
    update
        The names that they need for it.
    blobs
        Large parts of ``call``.
    values
        The names that are asked for afterwards, for each rank.
    show
        The ranks whose output comes here while they run.
    title
        What the user calls it.
    """

    ranks: tuple[int, ...]
    code: str | None = None
    call: Packed | None = None
    cells: Cells = field(default_factory=dict)
    place: CellPlace = field(default_factory=CellPlace)
    update: NamespaceUpdate = field(default_factory=NamespaceUpdate)
    blobs: Mapping[str, memoryview] = field(default_factory=dict)
    values: Mapping[int, Sequence[str]] = field(default_factory=dict)
    show: tuple[int, ...] = (0,)
    title: str = ""

    def asks(self, rank: int) -> bool:
        """Return whether a rank is asked for a value: only that of such a rank is unpickled."""
        return rank in self.ranks and (self.call is not None or bool(self.values.get(rank)))


@dataclass(frozen=True)
class RunNotice:
    """What the user should know while the run goes on."""

    text: str
