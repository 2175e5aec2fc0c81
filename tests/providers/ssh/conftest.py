"""Hosts of the lab, a home whose configuration has them, and clusters on them."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.targets import parse
from jupyter_sky.providers.ssh.provider import SSH
from tests.cluster.conftest import Cells
from tests.lab import Host, Lab, wheels
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT


@pytest.fixture
def client(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The ``.ssh`` folder of a user whom the hosts let in; a test may change it."""
    home = tmp_path / "home"
    shutil.copytree(lab.home, home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield home / ".ssh"
    hang_up(lab)


@contextlib.contextmanager
def impatient(client: Path, host: Host) -> Iterator[None]:
    """Wait for a host that does not answer for a second, and not for ten."""
    config = client / "config"
    usual = config.read_text()
    config.write_text(f"Host {host.name}\n  ConnectTimeout 1\n{usual}")
    try:
        yield
    finally:
        config.write_text(usual)


@contextlib.contextmanager
def cut(host: Host) -> Iterator[None]:
    """Pull the cable of a host for a while."""
    host.cut()
    try:
        yield
    finally:
        host.mend()


def hang_up(lab: Lab) -> None:
    """End the connections to all hosts, so that the next test makes its own."""
    for host in lab.hosts:
        for target in parse([host.name, f"ada@{host.name}"]):
            pool.get(target).close()


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels that a node needs, and one more."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels.build([*(re.split(r"[<>=]", each)[0] for each in NEEDED.values()), "numpy"], folder)
    wheels.write(folder, "greeting", "1.0", greeting="WORD = 'hello'\n")
    return folder


@pytest.fixture
def start(client: Path) -> Iterator[Callable[..., Cells]]:
    """Starts clusters on hosts; they end with the test."""
    started: list[Cells] = []

    def make(
        hosts: str,
        framework: bool = True,
        env: dict[str, str] | None = None,
        progress: Progress = lambda text: None,
        nodes: int | None = None,
        replace: bool = False,
        patience: float | None = None,
        **options: Any,
    ) -> Cells:
        provider = SSH(hosts, python=sys.executable, **options)
        name = f"ssh-{uuid.uuid4().hex[:8]}"
        image = sky.Image(env=env or {})
        count = nodes or provider.default_nodes
        wanted = ClusterSpec(
            name=name, nodes=count, image=image, replace=replace, patience=patience
        )
        spec, runtime_env = assemble(wanted, [sky.plugins.torch()] if framework else [])
        cells = Cells(Cluster.start(spec, provider, runtime_env, progress, Timeouts(stop=20)))
        started.append(cells)
        return cells

    yield make
    for cells in started:
        if cells.cluster.state.phase != "down":
            cells.cluster.down()


@pytest.fixture
def notebook(client: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook whose nodes use the Python of these tests."""
    with opened_over_ssh(client, tmp_path) as made:
        yield made


@contextlib.contextmanager
def opened_over_ssh(client: Path, folder: Path, **environ: str) -> Iterator[LiveNotebook]:
    """Open a notebook in a folder, for nodes that use the Python of these tests."""
    environ |= {"HOME": str(client.parent), "PYTHONPATH": str(ROOT)}
    made = LiveNotebook(folder / "n.ipynb", **environ)
    try:
        made.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}")
        yield made
    finally:
        made.close()


_SETTINGS = "[each for each in get_ipython().configurables if type(each).__name__ == 'Sky']"


@pytest.fixture(scope="module")
def same_client(lab: Lab, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``.ssh`` folder of the user of `kernel_over_ssh`."""
    return Path(shutil.copytree(lab.home, tmp_path_factory.mktemp("user") / "home")) / ".ssh"


@pytest.fixture(scope="module")
def kernel_over_ssh(
    same_client: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveNotebook]:
    """A kernel for all tests of a file; `same_kernel` makes it one test's notebook."""
    with opened_over_ssh(same_client, tmp_path_factory.mktemp("notebook")) as made:
        made.succeed(f"[settings] = {_SETTINGS}\nnames = settings.trait_names(config=True)")
        made.succeed("usual = {each: getattr(settings, each) for each in names}")
        yield made


@pytest.fixture
def same_kernel(kernel_over_ssh: LiveNotebook) -> Iterator[LiveNotebook]:
    """A notebook with the usual settings, in its folder, and without a cluster."""
    kernel_over_ssh.succeed(f"%cd {kernel_over_ssh.path.parent}")
    yield kernel_over_ssh
    kernel_over_ssh.run("%sky down")
    kernel_over_ssh.succeed("for each, value in usual.items(): setattr(settings, each, value)")
