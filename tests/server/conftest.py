"""A Jupyter server for the tests of a module, and clusters that end with each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.providers import providers
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.server.jupyter import Kernel, Server, serve


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
