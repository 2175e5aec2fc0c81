"""A Jupyter server for the tests of a module, and clusters that end with each test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import kernel_files, registry
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile
from jupyter_sky.cluster.inventory.storage import processes
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.providers import providers
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.server.jupyter import Kernel, Server, serve

IDENTITY = "0badc0de"
"""The id of the cluster that `told` tells of."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """End the clusters of a test, whoever started them."""
    yield
    for row in registry.read():
        if isinstance(row, RegistryRow) and row.provider in providers() and row.machines:
            Cluster.remove(row, providers()[row.provider])
        registry.remove(row.id)


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[[str], Kernel]]:
    """Open notebooks; their kernels end with the test."""
    made: list[Kernel] = []

    def open_notebook(name: str) -> Kernel:
        made.append(server.open(name))
        return made[-1]

    yield open_notebook
    for kernel in made:
        server.kernels.remove(kernel)
        kernel.close()


@pytest.fixture
def alone() -> Iterator[Cluster]:
    """A cluster that no notebook is connected to, but that stays for a while."""
    spec, runtime_env = assemble(ClusterSpec(name=f"alone-{os.getpid()}", nodes=2), [])
    cluster = Cluster.start(spec, Local(grace=600), runtime_env)
    yield cluster
    cluster.close()


@pytest.fixture
def told(server: Server) -> Iterator[Callable[..., Path]]:
    """Tell of a cluster as a live kernel of this test's process; return the file."""
    paths: list[Path] = []

    def tell(snapshot: Any, kernel: str = "k1", **changes: Any) -> Path:
        file = KernelFile(
            kernel,
            "/somewhere/n.ipynb",
            time.time(),
            (ClusterReport(IDENTITY, snapshot, None),),
            **changes,
        )
        kernel_files.write(server.runtime, file)
        paths.append(kernel_files.folder(server.runtime) / f"{kernel}.json")
        return paths[-1]

    registry.record(IDENTITY, "shown", "local", {"nodes": 4, "starter": processes.describe()})
    yield tell
    for path in paths:
        path.unlink(missing_ok=True)
