"""Each scene: the user is told what it was, the next cell runs, and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Cells
from tests.conftest import processes_of
from tests.faults.scenes import HOST_SCENES, SCENES
from tests.faults.scenes.links import cluster_on_two_networks
from tests.faults.scenes.scene import HostScene, Scene
from tests.lab import Lab
from tests.providers.ssh.conftest import hang_up
from tests.waiting import PATIENCE


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_the_user_is_told_and_goes_on(workplace: Path, scene: Scene) -> None:
    before = set(processes_of(workplace))
    felt = scene.play()
    assert re.search(scene.said, felt.said), felt.said
    left = set(processes_of(workplace)) - before
    assert not psutil.wait_procs(left, timeout=PATIENCE)[1]


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[Cells]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(lab.home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        with cluster_on_two_networks(lab) as cells:
            yield cells
        hang_up(lab)
    assert not any(host.processes("jupyter_sky") for host in lab.hosts)


@pytest.mark.parametrize("scene", HOST_SCENES, ids=lambda scene: scene.name)
def test_the_user_is_told_of_links_and_goes_on(lab: Lab, hosts: Cells, scene: HostScene) -> None:
    felt = scene.play(lab, hosts)
    assert re.search(scene.said, felt.said), felt.said
