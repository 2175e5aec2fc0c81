"""The progress of a transfer of blobs to the nodes of a cluster, and how well it compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from jupyter_sky.formatting import format_bytes

_SLOW = 50e6  # bytes a second; faster links are not mentioned


class HostTransfer:
    """What is sent to one host, and how much of it has arrived.

    Parameters
    ----------
    name
        What the user calls the host.
    sizes
        The bytes of each blob that it lacks, by digest.
    changed
        Called when more has arrived.

    Attributes
    ----------
    total, arrived
        Bytes of all of them, and those that have arrived.
    """

    def __init__(
        self,
        name: str = "",
        sizes: Mapping[str, int] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.total = sum((sizes or {}).values())
        self.arrived = 0
        self._sizes = sizes or {}
        self._changed = changed
        self._here: dict[str, int] = {}
        self._whole = self._packed = 0
        self._rate: float | None = None

    def on_arrived(self, key: str, size: int | None = None) -> None:
        """Record that the first ``size`` bytes of a blob have arrived; by default all of it."""
        size = self._sizes.get(key, 0) if size is None else min(size, self._sizes.get(key, 0))
        more = size - self._here.get(key, 0)
        if more > 0:
            self._here[key] = size
            self.arrived += more
            self._changed()

    def on_left(self, whole: int, packed: int, rate: float | None) -> None:
        """Record that ``whole`` bytes were sent as ``packed`` bytes.

        The link carries ``rate`` bytes a second, if that is known.
        """
        self._whole += whole
        self._packed += packed
        self._rate = rate

    @property
    def note(self) -> str:
        """Whether the data was compressed and why, in words; empty for a fast link."""
        if self._rate is None or self._rate > _SLOW or not self._whole:
            return ""
        share = self._packed / self._whole
        link = f"the connection takes {format_bytes(self._rate)} a second"
        if share < 0.99:
            return f"compressed to {share:.0%}, because {link}"
        return f"{link}, and compression would not help"


@dataclass(frozen=True)
class TransferProgress:
    """How far a transfer has come.

    Attributes
    ----------
    arrived, total
        Bytes, of all hosts together.
    shares
        The share of its data that each host has received, by its name.
    note
        Whether the data was compressed and why, if the connection is slow; or empty.
    """

    arrived: int
    total: int
    shares: Mapping[str, float]
    note: str = ""

    @property
    def share(self) -> float:
        """The share of all of it that has arrived; all has where no host lacks anything."""
        return self.arrived / self.total if self.total else 1.0


class Transfer:
    """What is sent to all hosts.

    Parameters
    ----------
    report
        Called with the progress whenever another percent has arrived.
    """

    def __init__(self, report: Callable[[TransferProgress], None] = lambda progress: None) -> None:
        self._report = report
        self._hosts: list[HostTransfer] = []
        self._percent = -1

    def add_host(self, name: str, blobs: Iterable[tuple[str, int]]) -> HostTransfer:
        """Add a host that lacks some blobs, each given by its digest and its size."""
        host = HostTransfer(name, dict(blobs), self._on_changed)
        self._hosts.append(host)
        return host

    def begin(self) -> None:
        """Report the beginning, which is the end where no host lacks anything."""
        self._on_changed()

    def _on_changed(self) -> None:
        arrived = sum(each.arrived for each in self._hosts)
        total = sum(each.total for each in self._hosts)
        percent = 100 * arrived // total if total else 100
        if percent > self._percent:
            self._percent = percent
            shares = {each.name: each.arrived / each.total for each in self._hosts if each.total}
            note = next(filter(None, (each.note for each in self._hosts)), "")
            self._report(TransferProgress(arrived, total, shares, note))
