"""What a notebook's environment has of jupyter_sky, and what to do where that is not enough."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from jupyter_sky import __version__
from jupyter_sky.server import schema
from tests.server.jupyter import Server
from tests.waiting import until


def start(server: Server, name: str, argv: list[str], language: str = "python") -> str:
    """Start a kernel of a new kind; return its id."""
    folder = server.folder.parent / "data" / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": language}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return str(server.fetch("api/kernels", {"name": name}).json["id"])


def environment(server: Server, kernel: str) -> dict[str, Any]:
    answer = server.sky(f"kernels/{kernel}")
    schema.check("Environment", answer.json)
    return dict(answer.json)


def test_a_notebook_that_has_loaded_it(server: Server) -> None:
    kernel = server.open("loaded.ipynb")
    until(lambda: environment(server, kernel.id)["loaded"])
    assert environment(server, kernel.id) == {
        "loaded": True,
        "jupyter_sky": __version__,
        "note": "",
    }


KERNEL = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]


def test_a_notebook_that_has_not_loaded_it(server: Server) -> None:
    kernel = start(server, "same", ["python", *KERNEL])
    assert environment(server, kernel) == {
        "loaded": False,
        "jupyter_sky": __version__,
        "note": "Type `%load_ext jupyter_sky` in this notebook to use clusters.",
    }


def test_an_environment_that_lacks_it(server: Server, tmp_path: Any) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    kernel = start(server, "bare", [str(python), *KERNEL])
    found = environment(server, kernel)
    assert (found["loaded"], found["jupyter_sky"]) == (False, None)
    assert found["note"] == (
        f"The environment of this notebook ({python}) has no jupyter_sky: "
        f"install the server's version, {__version__}, with `%pip install` in a cell."
    )


def test_an_environment_with_another_version(server: Server, tmp_path: Any) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 9.9 && exit\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    kernel = start(server, "newer", [str(python), *KERNEL])
    found = environment(server, kernel)
    assert found["jupyter_sky"] == "9.9"
    assert found["note"].startswith(
        f"This notebook has jupyter_sky 9.9, and the server {__version__}: "
        "install the same in both."
    )


@pytest.mark.parametrize("name", ["ein kernel", "00000000-0000-0000-0000-000000000000"])
def test_a_kernel_that_is_not_there(server: Server, name: str) -> None:
    answer = server.sky(f"kernels/{name.replace(' ', '%20')}")
    assert (answer.status, answer.message) == (404, "this server has no such kernel.")


def test_a_notebook_in_another_language(server: Server) -> None:
    kernel = start(server, "ir", [sys.executable, *KERNEL], language="R")
    assert environment(server, kernel)["note"] == (
        "This notebook is in R: only Python cells run on clusters."
    )
