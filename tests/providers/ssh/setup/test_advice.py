"""What is said where uv cannot make an environment: advice that helps on that host."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.environment.resolve import resolve
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.packages.environment import make_environment
from tests.lab import wheels
from tests.providers.ssh.setup.test_environment import ShellHere

_TORCH = sky.PipIndex(
    "https://wheels.example.org/cpu", ["torch"], cuda_url="https://wheels.example.org/cu128"
)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep uv from all networks, and from what it has downloaded before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"http://127.0.0.1:{server.getsockname()[1]}"
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, closed)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "downloaded"))


def refused(folder: Path, image: sky.Image, machine: str = platform.machine(), cuda=False) -> str:
    """Return what is said of a host where an environment cannot be made."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("there is no uv")
    cache = str(folder / "cache")
    facts: Any = SimpleNamespace(
        cache=cache, cache_folder=cache, machine=machine, disk=2**40, uv=uv
    )
    shell: Any = ShellHere()
    with pytest.raises(HostError) as caught:
        make_environment(shell, facts, image, Relay(1), lambda _: None, lambda _: None, cuda)
    return str(caught.value)


def test_wheels_to_take_along_are_for_the_host(tmp_path: Path, offline: None) -> None:
    image = sky.Image(pip=["torch"], pip_indexes=[_TORCH])
    here = refused(tmp_path, image)
    assert here.startswith("it reaches no package index: `%pip download -d wheels --extra-index")
    assert " --extra-index-url https://wheels.example.org/cpu " in here
    there = refused(tmp_path, image, "riscv64", cuda=True)
    assert " --extra-index-url https://wheels.example.org/cu128 " in there
    assert (
        "`%pip download -d wheels --only-binary=:all: --platform=manylinux_2_28_riscv64 "
        "--platform=manylinux2014_riscv64 "
    ) in there


@pytest.mark.parametrize("downloads", ["automatic", "never"])
def test_a_python_that_is_not_there_and_cannot_be_downloaded_is_named(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch, downloads: str
) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", downloads)
    monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-managed")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    version = ".".join(map(str, sys.version_info[:2]))
    assert refused(tmp_path, sky.Image(pip=["einops"])) == (
        f"it has no Python {version}, and cannot download it: install it there, or name an "
        "interpreter of that version with `%config Sky.python`"
    )


def test_wheels_that_a_folder_lacks_are_for_the_host(tmp_path: Path, offline: None) -> None:
    folder = tmp_path / "wheels"
    wheels.write(folder, "greeting", "1.0", greeting="")
    said = refused(tmp_path, sky.Image(pip=["absent"], pip_indexes=[str(folder)]), "riscv64")
    assert f"`%pip download -d {folder} --only-binary=:all: --platform=manylinux_2_28_risc" in said


def test_a_notebook_of_another_system_downloads_for_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.write(tmp_path, "greeting", "1.0", greeting="")
    image = sky.Image(pip_indexes=[str(tmp_path)])
    monkeypatch.setattr(sys, "platform", "darwin")
    _, [sentence] = resolve(image, [], ["numpy"])
    platforms = "--platform=manylinux_2_28_x86_64 --platform=manylinux2014_x86_64"
    assert f"`%pip download -d {tmp_path} --only-binary=:all: {platforms} numpy==" in sentence
