"""Plugins that are added to a running cluster; for the user's thread."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import row_updates
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.spec import Image
from jupyter_sky.transport.event_loop import wait_with_cleanup
from jupyter_sky.transport.tasks import blocking


class Plugins:
    """The plugins of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def check_idle(self) -> None:
        """Refuse to add plugins while ranks are busy.

        Raises
        ------
        UsageError
            While something runs.
        """
        if self._controller.state.is_in_use:
            raise UsageError(
                "plugins are added between runs: wait for the end of what runs, or stop it with "
                "`%sky interrupt`."
            )

    def enter(self, runtime_env: RuntimeEnv, image: Image) -> None:
        """Let ranks enter additional plugins, keeping their variables.

        Parameters
        ----------
        runtime_env
            The environment that ranks enter from now on, which extends the present one.
        image
            The image of nodes that join from now on.

        Raises
        ------
        UsageError
            While something runs.
        SkyError
            If ranks cannot enter them; the cluster is then as it was.
        """
        self.check_idle()
        wait_with_cleanup(self._enter(runtime_env, image))

    async def _enter(self, runtime_env: RuntimeEnv, image: Image) -> None:
        controller = self._controller
        before, spec = controller.runtime_env, controller.spec
        controller.runtime_env = replace(runtime_env, added=before.added, renew_at=before.renew_at)
        controller.spec = replace(spec, image=image)
        try:
            await process_group.form(controller)
        except BaseException:
            controller.runtime_env, controller.spec = before, spec
            with contextlib.suppress(SkyError):
                await process_group.form(controller)
            raise
        await blocking(row_updates.record_plugins, controller.id, runtime_env.plugins)
