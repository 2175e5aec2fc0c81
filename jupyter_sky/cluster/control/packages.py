"""Packages that are added to a cluster while it is up; for the user's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import later
from jupyter_sky.cluster.packages.install import install
from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.packages import check_secrets, package_name, with_cuda
from jupyter_sky.providers.spec import Image
from jupyter_sky.transport.event_loop import wait_with_cleanup
from jupyter_sky.transport.tasks import blocking


class Packages:
    """The packages that were added to a cluster since it began.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @property
    def added(self) -> tuple[str, ...]:
        """What was added, as pip writes it."""
        return self._controller.runtime_env.added

    def set_image(self, image: Image) -> None:
        """Say what is installed on the nodes, which the registry does not keep, for new ones."""
        self._controller.spec = replace(self._controller.spec, image=image)

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
            The packages as pip writes them; they take the place of what was asked for before under
            the same names.
        image
            Says where packages come from; by default the cluster's own image.
        progress
            Called with what is going on on each node.

        Returns
        -------
        list of str
            Name and version of each package that is new on some node.

        Raises
        ------
        UsageError
            When one of them lacks its password.
        SkyError
            When they cannot be installed on some node; all have what they had then.
        """
        check_secrets([*self.added, *requirements])
        return wait_with_cleanup(
            self._add(requirements, image or self._controller.spec.image, progress)
        )

    async def _add(
        self, requirements: Sequence[str], image: Image, progress: Progress
    ) -> list[str]:
        controller, before = self._controller, self.added
        named = {package_name(each) for each in requirements}
        kept = [each for each in before if package_name(each) not in named]
        every = tuple(dict.fromkeys([*kept, *requirements]))
        has_gpus = any(node.gpu for node in controller.state.nodes)
        installed = await install(
            controller.connections,
            every,
            with_cuda(image) if has_gpus else image,
            progress,
            before,
            requirements,
        )
        controller.runtime_env = replace(controller.runtime_env, added=every)
        controller.spec = replace(controller.spec, image=image)
        shown = [without_secrets(each) for each in every]
        await blocking(later.record_packages, controller.id, shown)
        return installed
