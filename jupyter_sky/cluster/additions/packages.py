"""Packages that are added to a running cluster; for the user's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import row_updates, turns
from jupyter_sky.cluster.inventory.registry import RegistryError
from jupyter_sky.cluster.packages.added import all_added
from jupyter_sky.cluster.packages.install import install
from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.packages import (
    check_secrets,
    package_name,
    updated,
    wheel_content,
    with_cuda,
)
from jupyter_sky.providers.spec import Image
from jupyter_sky.transport.event_loop import wait_uninterrupted, wait_with_cleanup
from jupyter_sky.transport.tasks import blocking

_LOOK_EVERY = 0.2  # seconds


class Packages:
    """The packages that were added to a cluster since it began.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._sent = _contents(controller.spec.image)

    @property
    def added(self) -> tuple[str, ...]:
        """The added requirements, in pip's syntax."""
        return all_added(self._controller.id, self._controller.runtime_env.added)

    def set_image(self, image: Image) -> None:
        """Set the image for new nodes, which the registry does not keep."""
        self._controller.spec = replace(self._controller.spec, image=image)
        self._sent = _contents(image)

    def changed(self, wheels: Iterable[Path]) -> frozenset[str]:
        """Return the names of the packages whose wheels are not those that the nodes have.

        One that was built again has the same name and version, and other content.
        """
        return frozenset(
            name for name, content in _by_name(wheels).items() if self._sent.get(name) != content
        )

    @contextlib.contextmanager
    def turn(self, waiting: Callable[[], object]) -> Iterator[None]:
        """Keep other notebooks from installing packages: nodes would keep the last ones alone.

        Parameters
        ----------
        waiting
            Called again and again as long as another notebook installs some.

        Raises
        ------
        Interrupted
            If Ctrl-C has ended the wait.
        """
        identity, name = self._controller.id, self._controller.spec.name
        try:
            try:
                while not turns.begin(identity, "installer"):
                    waiting()
                    time.sleep(_LOOK_EVERY)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"the wait for another notebook was stopped; {name} is as it was."
                ) from None
            yield
        finally:
            with contextlib.suppress(RegistryError):
                wait_uninterrupted(blocking(turns.end, identity, "installer"))

    def add(
        self,
        requirements: Sequence[str],
        image: Image | None = None,
        progress: Progress = lambda text: None,
    ) -> list[str]:
        """Install packages on all nodes, and on those that join from now on.

        Variables stay, and so do modules that ranks have imported.

        Parameters
        ----------
        requirements
            The packages, in pip's syntax; they replace earlier requirements of the same names.
        image
            Names the indexes; by default, the cluster's own image.
        progress
            Called with the progress on each node.

        Returns
        -------
        list of str
            Name and version of each package that is new on some node.

        Raises
        ------
        UsageError
            If the password of an index is missing.
        SkyError
            If they cannot be installed on some node; all nodes are then as they were.
        """
        every = updated(self.added, requirements)
        check_secrets(every)
        image = image or self._controller.spec.image
        return wait_with_cleanup(self._add(every, requirements, image, progress))

    async def _add(
        self, every: Sequence[str], requirements: Sequence[str], image: Image, progress: Progress
    ) -> list[str]:
        controller = self._controller
        sent = await blocking(_contents, image)
        has_gpus = any(node.gpu for node in controller.state.nodes)
        installed = await install(
            controller.connections,
            every,
            with_cuda(image) if has_gpus else image,
            progress,
            requirements,
        )
        controller.runtime_env = replace(controller.runtime_env, added=tuple(every))
        controller.spec = replace(controller.spec, image=image)
        self._sent = sent
        shown = [without_secrets(each) for each in every]
        await blocking(row_updates.record_packages, controller.id, shown)
        return installed


def _contents(image: Image) -> Mapping[str, list[str]]:
    return _by_name(map(Path, image.wheels))


def _by_name(wheels: Iterable[Path]) -> Mapping[str, list[str]]:
    """Return what is in each wheel that can be read, by the name of its package."""
    found = {}
    for wheel in wheels:
        with contextlib.suppress(OSError, BadZipFile):  # uv says what is wrong with it
            found[package_name(wheel.name)] = wheel_content(wheel)
    return found
