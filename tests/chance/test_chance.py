"""A few of the steps that ``python -m tests.chance`` makes for as long as is wanted."""

from __future__ import annotations

import pytest

from tests.chance.hosts import HostsChance
from tests.chance.machine import run
from tests.chance.world import Shape
from tests.lab import Lab
from tests.providers.ssh.conftest import hang_up


def test_by_chance() -> None:
    run(seed=3, clusters=3, steps=20)


def test_by_chance_on_hosts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(lab.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(HostsChance, "lab", lab, raising=False)
    monkeypatch.setattr(HostsChance, "shapes", [Shape(2)])
    run(seed=3, clusters=3, steps=8, kind=HostsChance)
    hang_up(lab)
