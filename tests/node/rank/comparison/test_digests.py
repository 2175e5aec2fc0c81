"""Digests of tensors: what differs has another one, also where it is made on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_sky.node.rank.comparison import digests
from jupyter_sky.node.rank.comparison.parts import parts
from tests.installed import on_first_use

torch = on_first_use("torch")


def _as_on_a_gpu(tensor: Any) -> str:
    """The digest that is made with operations of the device; the processor has them too."""
    return digests._mixed(tensor.contiguous().reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("digest", [digests.of_tensor, _as_on_a_gpu])
def test_what_differs_has_another_digest(digest: Callable[[Any], str]) -> None:
    one = torch.arange(1000, dtype=torch.float32)
    assert digest(one) == digest(one.clone())
    found = {digest(one)}
    for change in (lambda t: t[0].neg_(), lambda t: t[7:9].neg_(), lambda t: t[999].add_(1e-3)):
        other = one.clone()
        change(other)
        found.add(digest(other))
    found |= {digest(one.flip(0)), digest(one[:-1]), digest(one[:997]), digest(one[1:])}
    swapped = one.clone()
    swapped[[0, 500]] = swapped[[500, 0]]
    assert len(found | {digest(swapped), digest(torch.zeros(1000))}) == 10


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(5000)
    whole = _as_on_a_gpu(tensor)
    monkeypatch.setattr(digests, "_BLOCK", 64)
    assert _as_on_a_gpu(tensor) == whole


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(0),
        lambda: torch.tensor(3.5),
        lambda: torch.ones(3, 4).t(),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.ones(3, dtype=torch.bool),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.empty(3, device="meta"),
    ],
)
def test_tensors_of_any_kind(make: Callable[[], Any]) -> None:
    tensor = make()
    [part] = [each.seen() for each in parts("t", tensor)]
    assert part["digest"]
    assert part["digest"] == next(parts("t", tensor.clone())).seen()["digest"]


def test_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    tensor = torch.randn(100_000, device="cuda")
    assert digests.of_tensor(tensor) == digests.of_tensor(tensor.clone()) == _as_on_a_gpu(tensor)
    assert _as_on_a_gpu(tensor) == _as_on_a_gpu(tensor.cpu())
