"""What groups do with NCCL is found; gloo stands for it here."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from jupyter_sky.node.rank.group import torch_groups
from tests.installed import on_first_use

torch = on_first_use("torch")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Form a group of one rank, in which torch checks all that is called."""
    dist = torch.distributed
    c10d = dist.distributed_c10d
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", c10d.ProcessGroupGloo, raising=False)
    usual = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    dist.set_debug_level(usual)


def test_it_is_found_within_what_checks_the_calls(checked: None) -> None:
    dist = torch.distributed
    newer = dist.new_group([0])
    groups = [newer, dist.group.WORLD]
    found = [each._get_backend(torch.device("cuda")).wrapped_pg for each in groups]
    assert torch_groups._of_nccl() == found


def test_without_a_group_there_is_nothing_to_do() -> None:
    torch_groups.abort_nccl()
    torch_groups.raise_failed()


class OnOneGPU:
    """A group whose abort waits until the GPU is idle: until another group is aborted."""

    def __init__(self, began: Event, waits_for: Event) -> None:
        self._began, self._waits_for = began, waits_for
        self.is_aborted = False

    def abort(self) -> None:
        self._began.set()
        self.is_aborted = self._waits_for.wait(10)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_abort_may_wait_for_that_of_another_group(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    idle, began = Event(), Event()
    waits, frees = OnOneGPU(began, idle), OnOneGPU(idle, idle)
    monkeypatch.setattr(
        torch_groups, "_of_nccl", lambda: [waits, frees] if is_first else [frees, waits]
    )
    torch_groups.abort_nccl()
    assert waits.is_aborted
    assert frees.is_aborted
