"""Ways to run something on several processes from a notebook: ours and others, by one interface.

One file each. They are only imported in a kernel that was started to measure that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Peer(ABC):
    """What is measured of each. The constructor imports it, which does not count."""

    @abstractmethod
    def start(self, ranks: int) -> None:
        """Come up; return when so many processes are in one process group."""

    @abstractmethod
    def round_trip(self) -> None:
        """Run what does nothing on every process, and return when all have."""

    @abstractmethod
    def push(self, array: np.ndarray) -> list[int] | None:
        """Have every process ``look`` at an array of the notebook and return what they saw.

        ``None`` where there is no way to send one.
        """

    @abstractmethod
    def push_again(self) -> list[int] | None:
        """Have every process ``look`` once more at the array that was pushed last.

        It has not changed. A peer that gave a reference to it uses that reference, as its users do.
        """

    @abstractmethod
    def stop(self) -> None:
        """End what was started."""


@dataclass(frozen=True)
class Entry:
    """A peer that can be measured where ``package`` is installed; ``where`` is its class."""

    name: str
    package: str
    where: str

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None


OURS = Entry("jupyter_sky", "jupyter_sky", f"{__name__}.sky:Sky")
OTHERS = (
    Entry("ipyparallel", "ipyparallel", f"{__name__}.ipyparallel:IPyParallel"),
    Entry("nbdistributed", "nbdistributed", f"{__name__}.nbdistributed:NBDistributed"),
    Entry("Ray", "ray", f"{__name__}.ray:Ray"),
    Entry("Dask", "distributed", f"{__name__}.dask:Dask"),
)
