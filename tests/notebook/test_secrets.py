"""Passwords in addresses of packages: they reach what installs, and nobody who reads along."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.notebook.attached import attached_options
from tests.notebook.conftest import Notebook
from tests.notebook.kernels import LiveNotebook

SECRET = "s3cret7oken"


def test_a_password_of_a_package_is_nowhere_to_be_read(
    opened: Callable[..., LiveNotebook], workplace: Path, home: Path
) -> None:
    notebook = opened()
    notebook.succeed("import os\nos.environ['TOKEN'] = 'of yesterday'")
    asked = f"--nodes 1 --plugin none --pip 'lacking @ https://me:{SECRET}@h.org/l.whl'"
    asked += " --variable TOKEN"
    first = notebook.run(f"%%sky {asked}\npass")
    assert first.error and "https://****@h.org/l.whl could not be installed" in str(first.error)
    assert "installing lacking @ https://****@h.org/l.whl: failed" in first.shown[-1]
    second = notebook.succeed(f"%%sky\ncommand = 'pip install git+https://{SECRET}@h.org/a'")
    # A token that was renewed is that of all cells from then on, also with new processes.
    notebook.succeed("os.environ['TOKEN'] = ''.join(['s3cret', '7oken'])")
    size = "import os\nsize = len(os.environ['TOKEN'])"
    for cell in (f"%%sky --variable TOKEN --out size\n{size}", f"%%sky --out size\n{size}"):
        notebook.succeed("size = 0\n%sky restart")
        notebook.succeed(cell)
        assert notebook.value("size") == len(SECRET)
    third = notebook.succeed("%sky status")
    assert not any(SECRET in repr(cell) for cell in (first, second, third))
    [row] = registry.rows()
    assert attached_options(row).pip == ("lacking @ https://****@h.org/l.whl",)
    for folder in (home, workplace / "jupyter", workplace / "run"):
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # what is written again meanwhile
                assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    for process in psutil.process_iter(["cmdline"]):
        assert not any(SECRET in word for word in process.info["cmdline"] or ())


def test_a_cell_that_is_run_again_has_the_token_of_now(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "of yesterday")
    cell = "%%sky --nodes 1 --variable TOKEN\nimport os\nprint(os.environ['TOKEN'])"
    assert notebook.run(cell) == "of yesterday\n"
    monkeypatch.setenv("TOKEN", "of today")
    assert notebook.run(cell) == "of today\n"


def test_what_is_shown_of_an_image_has_no_password() -> None:
    image = sky.Image(
        pip=["torch", f"a @ https://{SECRET}@h.org/a.whl"],
        pip_indexes=[f"https://me:{SECRET}@h.org/simple"],
        env={"TOKEN": SECRET},
    )
    assert "torch" in repr(image)
    assert "h.org/simple" in repr(image)
    for shown in (image, image.pip_indexes, sky.PipIndex(f"https://{SECRET}@h.org")):
        assert SECRET not in repr(shown)
    pool = sky.ComputePool(image=image)
    assert SECRET not in repr(pool) + repr(pool.spec)
