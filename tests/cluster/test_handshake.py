"""Nodes whose Python cannot work with the notebook's are refused; lesser differences are said."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster import registry
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.handshake import VersionMismatch, check, compare
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.versions import versions

HERE = {"python": "3.12.4", "torch": "2.13.0+cpu", "cloudpickle": "3.1.2"}


@pytest.mark.parametrize(
    "there",
    [
        HERE,
        {**HERE, "python": "3.12.11"},
        {**HERE, "torch": "2.13.0+cu130"},
        {"python": "3.12.4", "cloudpickle": "3.1.2"},
    ],
)
def test_what_works_together_is_not_mentioned(there: dict[str, str]) -> None:
    assert compare(HERE, there) == []


@pytest.mark.parametrize("python", ["3.11.9", "3.13.0", "4.12.4"])
def test_another_minor_python_is_refused_with_what_to_do(python: str) -> None:
    minor = python.rpartition(".")[0]
    with pytest.raises(VersionMismatch) as error:
        compare(HERE, {**HERE, "python": python}, "gpu1")
    assert str(error.value) == (
        f"gpu1 has Python {minor} and the notebook Python 3.12, between which functions cannot "
        f"travel: run the notebook with Python {minor}, or start the cluster anew with Python "
        "3.12 on its nodes."
    )


def test_another_package_is_mentioned_with_what_to_do() -> None:
    [warning] = compare(HERE, {**HERE, "torch": "2.9.1+cu128"}, "gpu1")
    assert warning == (
        "gpu1 has torch 2.9.1 and the notebook 2.13.0, so that not every object may travel "
        "between them: `%pip install torch==2.9.1` makes them the same."
    )
    assert len(compare(HERE, {**HERE, "torch": "2.9.1", "cloudpickle": "2.0"})) == 2


def test_nodes_that_are_alike_are_mentioned_once() -> None:
    here = versions()
    other = {**here, "cloudpickle": "0.9"}
    [warning] = check({"gpu1": other, "gpu2": here, "gpu3": other, "gpu4": other})
    assert warning.startswith("gpu1 (like 2 others) has cloudpickle 0.9 and the notebook ")


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose nodes find another cloudpickle than the kernel that comes back to them."""
    metadata = tmp_path / "cloudpickle-0.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: cloudpickle\nVersion: 0.9\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        spec, frame = assemble(ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}"), [])
        cluster = Cluster.start(spec, Local(), frame)
    yield cluster
    cluster.down()


def attach(name: str) -> Cluster | None:
    row = registry.find(name)
    assert row is not None
    _, frame = assemble(ClusterSpec(name=name), [])
    return Cluster.attach(row, Local(), frame)


def test_a_kernel_hears_of_other_versions_when_it_connects(older: Cluster) -> None:
    assert older.warnings == ()
    again = attach(older.name)
    assert again is not None
    assert [text.split(" and ")[0] for text in again.warnings] == ["node 0 has cloudpickle 0.9"]
    again.close()


def test_a_kernel_that_is_refused_leaves_the_cluster_as_it_is(
    older: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
        with pytest.raises(VersionMismatch, match=r"the notebook Python 3\.99"):
            attach(older.name)
    again = attach(older.name)
    assert again is not None
    again.close()
