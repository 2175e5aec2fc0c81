"""What groups do with NCCL is found; gloo stands for it here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_sky.node.rank import torch_groups
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
