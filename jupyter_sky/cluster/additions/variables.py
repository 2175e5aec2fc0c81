"""Environment variables that the user has given a cluster; for the user's thread.

Their values can be secrets, so they are kept nowhere but in memory: of the notebook that has set
them, and of the agents, which start processes with them. A notebook that takes a cluster over asks
agents, and knows by the seals in the registry whether one tells the truth: a node speaks for itself
only, and what it says is given to others here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.cluster.inventory.seals import fits
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.event_loop import call, wait
from jupyter_sky.transport.protocol.agent_requests import VariablesAnswer
from jupyter_sky.transport.tasks import blocking


class RankVariables:
    """The environment variables that the user has given the ranks of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def renew(self, new: Mapping[str, str]) -> None:
        """Give ranks new values: those that are there with the next cell, others as they start."""
        row_updates.record_variables(self._controller.id, new)
        self._controller.sync.asked_variables.update(new)
        self._set(new)
        call(self._tell, dict(new))

    def take_over(self, names: Sequence[str]) -> dict[str, str]:
        """Return the values that another notebook has set, as far as nodes tell them."""
        row = registry.with_id(self._controller.id) if names else None
        seals = row.spec.get("seals", {}) if row else {}
        values = wait(self._ask({name: seals[name] for name in names if name in seals}))
        asked = self._controller.sync.asked_variables
        asked.update({name: value for name, value in values.items() if name in asked})
        self._set(values)
        return values

    def _set(self, values: Mapping[str, str]) -> None:
        """Have nodes that join start with these values."""
        spec = self._controller.spec
        image = replace(spec.image, env={**spec.image.env, **values})
        self._controller.spec = replace(spec, image=image)

    def _tell(self, new: dict[str, str]) -> None:
        for each in self._controller.connections:
            self._controller.spawn(request_quietly(each, "renew_variables", variables=new))

    async def _ask(self, seals: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in self._controller.connections:
            if not (missing := [name for name in seals if name not in found]):
                break
            with contextlib.suppress(SkyError):
                answer = await each.request("variables", names=missing)
                told = cast(VariablesAnswer, answer)["variables"]
                found |= await blocking(_true_ones, told, seals)
        return found


def _true_ones(told: Mapping[str, str], seals: Mapping[str, str]) -> dict[str, str]:
    known = told.keys() & seals.keys()
    return {name: told[name] for name in known if fits(told[name], seals[name])}
