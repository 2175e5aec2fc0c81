"""The volumes of a cluster; for the user's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jupyter_sky.cluster.control.attention import kept_up
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import describe_loss
from jupyter_sky.cluster.errors import busy
from jupyter_sky.cluster.volumes import mount, renewal
from jupyter_sky.formatting import format_list
from jupyter_sky.providers.buckets.volume import Volume, check_volumes
from jupyter_sky.transport.event_loop import call, wait, wait_with_cleanup
from jupyter_sky.transport.volumes.requests import VolumeState, WrittenVolume

_LONG = 1.0  # seconds for which it is not mentioned that files are being written back


class Mounts:
    """The volumes of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes, as requested."""
        return self._controller.spec.volumes

    def remember(self, volumes: Sequence[Volume]) -> None:
        """Take over the volumes of another kernel, and renew their credentials from here."""
        self._controller.spec = replace(self._controller.spec, volumes=tuple(volumes))
        if volumes:
            call(renewal.begin, self._controller, 0.0)

    def add(self, volumes: Sequence[Volume]) -> None:
        """Make further volumes on all nodes, including those that join from now on.

        Raises
        ------
        UsageError
            If one is at the path of another.
        SkyError
            If a node cannot make one.
        """
        every = check_volumes([*self.volumes, *volumes])
        controller = self._controller

        async def make() -> float | None:
            async with kept_up(controller):
                return await mount.mount(
                    controller.connections, every, controller.provider, controller.warn
                )

        at = wait_with_cleanup(make())
        controller.spec = replace(controller.spec, volumes=every)
        call(renewal.begin, controller, at)

    def write_back(
        self, first: int = 0, tick: Callable[[], object] = lambda: None
    ) -> tuple[list[str], list[str]]:
        """Write back what ranks have written.

        Parameters
        ----------
        first
            The first node whose agent writes; an agent of earlier nodes as well does not.
        tick
            Called twice a second meanwhile, in this thread.

        Returns
        -------
        tuple
            Sentences about what was written, and about files that exist only on a node.
        """
        controller = self._controller
        # Agents that end themselves, or are ended, write back on their own.
        if not self.volumes or not (controller.alive or controller.loss.nodes):
            return [], []
        there = [
            each
            for each in controller.connections
            if not each.is_over and each.machine.nodes[0].node >= first
        ]

        async def write() -> tuple[dict[str, list[WrittenVolume]], list[str]]:
            async with kept_up(controller):
                with self._noted():
                    return await mount.write_back(there)

        said, unanswered = wait_with_cleanup(write(), tick=tick)
        written, troubles = mount.sentences(said)
        return written, [*troubles, *unanswered]

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Note where files are being written back to, for those who see only the cluster."""
        controller = self._controller
        written = [each.url for each in self.volumes if not each.read_only]
        note = f"writing back to {format_list(written)}"

        def change(former: str, present: str) -> None:
            if controller.activity == former:  # else it is at more than that
                controller.activity = present
                controller.wake()

        loop = asyncio.get_running_loop()
        begin = loop.call_later(_LONG, change, "", note) if written else None
        try:
            yield
        finally:
            if begin:
                begin.cancel()
            change(note, "")

    def write_back_leaving(
        self, stay: int, tick: Callable[[], object] = lambda: None
    ) -> tuple[list[str], list[str]]:
        """Write back what ranks of the nodes that are about to leave have written.

        Parameters
        ----------
        stay
            How many nodes stay.
        tick
            As for `write_back`.

        Returns
        -------
        tuple
            As of `write_back`.

        Raises
        ------
        UsageError
            While something runs: its files may be half written, and no node leaves.
        """
        controller = self._controller
        if not self.volumes:
            return [], []
        if not wait(controller.holds_soon(lambda: not controller.state.busy_runs)):
            raise busy(controller.spec.name)
        return self.write_back(stay, tick)

    def lost(self) -> list[str]:
        """Return sentences about lost nodes, whose ranks may have written what is nowhere else."""
        if all(each.read_only for each in self.volumes):
            return []
        return [
            mount.not_known(each.name, describe_loss(each))
            for each in self._controller.connections
            if each.is_over and not each.is_stopped and each.name in self._controller.loss.nodes
        ]

    def states(self) -> dict[str, list[VolumeState]]:
        """Return the present state of volumes, by node name."""
        return wait(mount.states(self._controller.connections)) if self.volumes else {}
