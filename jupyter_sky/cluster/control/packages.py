"""Packages that are added to a running cluster; for the user's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import row_updates
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
        """The added requirements, in pip's syntax."""
        return self._controller.runtime_env.added

    def set_image(self, image: Image) -> None:
        """Set the image for new nodes, which the registry does not keep."""
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
            requirements,
        )
        controller.runtime_env = replace(controller.runtime_env, added=every)
        controller.spec = replace(controller.spec, image=image)
        shown = [without_secrets(each) for each in every]
        await blocking(row_updates.record_packages, controller.id, shown)
        return installed
