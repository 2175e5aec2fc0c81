"""Nodes whose Python cannot work with the notebook's are refused; lesser differences are said."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_sky
from jupyter_sky import __version__ as VERSION
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import probe, registry
from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.version_check import VersionMismatch, check, compare
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.versions import versions

HERE = {"python": "3.12.4", "jupyter_sky": "0.2.0", "torch": "2.13.0+cpu", "cloudpickle": "3.1.2"}


@pytest.mark.parametrize(
    "there",
    [
        HERE,
        {**HERE, "python": "3.12.11"},
        {**HERE, "torch": "2.13.0+cu130"},
        {"python": "3.12.4", "jupyter_sky": "0.2.0", "cloudpickle": "3.1.2"},
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
        f"travel: run the notebook with Python {minor}, or start the cluster again with Python "
        "3.12 on its nodes."
    )


def test_ranks_with_another_jupyter_sky_are_refused_with_what_to_do() -> None:
    with pytest.raises(VersionMismatch) as error:
        compare(HERE, {**HERE, "jupyter_sky": "0.1.0"}, "gpu1")
    assert str(error.value) == (
        "the ranks on gpu1 have jupyter_sky 0.1.0 and the notebook 0.2.0: end the cluster with "
        "`%sky down` and start it again."
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
        spec, runtime_env = assemble(ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}"), [])
        cluster = Cluster.start(spec, Local(), runtime_env)
    yield cluster
    cluster.down()


def attach(name: str) -> Cluster | None:
    row = registry.find(name)
    assert row is not None
    _, runtime_env = assemble(ClusterSpec(name=name), [])
    return Cluster.attach(row, Local(), runtime_env)


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


def test_a_cluster_of_another_version_is_refused_and_can_be_ended(
    older: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = registry.find(older.name)
    assert row is not None
    with monkeypatch.context() as patch:
        patch.setattr(jupyter_sky, "__version__", "9.9")
        with pytest.raises(VersionMismatch) as error:
            attach(older.name)
        assert str(error.value) == (
            f"cluster {older.name} was started by jupyter_sky {VERSION} and this is 9.9, which "
            f"cannot use it: end it with `%sky down {older.name}` and start it again, "
            f"or install jupyter_sky {VERSION} where the notebook runs."
        )
        [result] = probe.probe([row], {"local": Local()})
        assert result.phase == "idle"
        assert Cluster.remove(row, Local()) == []
    assert registry.find(older.name) is None


def test_an_agent_refuses_a_kernel_of_another_version_itself(
    older: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = registry.find(older.name)
    assert row is not None
    machine = Local().machine(row.machines[0])

    async def ask_as_another_version() -> str:
        connection = Connection(machine, ConnectionListener())
        with monkeypatch.context() as patch:
            patch.setattr(jupyter_sky, "__version__", "0.1.0")
            await connection.open(since=None)
        try:
            read = {"rank": 0, "tail": 1, "offset": 0, "limit": 1000}
            assert (await connection.request("log", **read))["size"] >= 0
            with pytest.raises(SkyError) as error:
                await connection.request("kill", ranks=[0])
        finally:
            connection.close()
        return str(error.value)

    assert event_loop.wait(ask_as_another_version()) == (
        f"cluster {older.name} was started by jupyter_sky {VERSION}, which 0.1.0 cannot use: end "
        f"it with `%sky down {older.name}` and start it again, or install jupyter_sky {VERSION} "
        "where the notebook runs."
    )
