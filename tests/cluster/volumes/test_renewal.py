"""Credentials of volumes are sent again and again, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.volumes import mount, renewal
from tests.lab.buckets import serving
from tests.waiting import PATIENCE


def test_credentials_without_time_left_are_not_renewed_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mount, "_RENEW_BEFORE", 0)
    with serving():
        volumes = [sky.Volume("s3://photos/2024", "/data")]
        at = asyncio.run(mount.mount([], volumes, sky.SSH("gpu1"), list))
    assert at is not None
    assert at > time.time() + 50


@dataclass
class Node:
    """A node that cannot make volumes a few times."""

    failures: int
    is_over: bool = False
    name = "node 0"

    async def request(self, kind: str, **given: Any) -> dict[str, Any]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("refused")
        return {"notes": [], "trouble": ""}


@dataclass(eq=False)
class Owner:
    """A cluster with such a node and a volume."""

    connections: list[Any]
    runtime_env: RuntimeEnv = field(default_factory=lambda: RuntimeEnv(None))
    spec: Any = field(
        default_factory=lambda: SimpleNamespace(volumes=[sky.Volume("file:///data", "/data")])
    )
    provider: Any = field(default_factory=sky.Local)
    warnings: tuple[str, ...] = ()
    untold: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    @property
    def notify(self) -> Any:
        return self.shown.append

    def warn(self, sentences: Iterable[str]) -> None:
        self.warnings += tuple(sentences)


async def renew(owner: Owner) -> None:
    renewal.begin(owner, time.time())
    await asyncio.wait_for(renewal._tasks[owner], PATIENCE)


@pytest.mark.parametrize(("failures", "warnings"), [(1, 0), (3, 1)])
def test_a_renewal_that_fails_is_tried_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch, failures: int, warnings: int
) -> None:
    monkeypatch.setattr(renewal, "_AGAIN_AFTER", 0)
    owner = Owner([Node(failures)])
    asyncio.run(renew(owner))
    assert owner.connections[0].failures == 0
    told = ["the credentials of volumes cannot be renewed: refused"] * warnings
    assert owner.shown == owner.untold == told  # in the cell that runs, and in the next


def test_a_node_that_is_being_replaced_keeps_no_other_from_new_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "_AGAIN_AFTER", 0)
    owner = Owner([Node(failures=3, is_over=True), Node(failures=1)])
    asyncio.run(renew(owner))
    assert owner.shown == owner.untold == []
