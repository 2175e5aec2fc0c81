"""A notebook with a real kernel, whose cells rent machines of the stand-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT


@contextmanager
def renting_notebook(path: Path, **settings: Any) -> Iterator[LiveNotebook]:
    """Open a notebook that asks the stand-in, with these settings of `AWS`, and needs no torch.

    Parameters
    ----------
    path
        Its file.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    made = LiveNotebook(path, PYTHONPATH=str(ROOT), **environment)
    try:
        set_up(made, **settings)
        yield made
    finally:
        made.close()


def set_up(notebook: LiveNotebook, **settings: Any) -> None:
    """Have a notebook the magic, with these settings of `AWS`."""
    notebook.succeed(
        f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}\n"
        f"%config Sky.aws = {settings!r}\n%config Sky.plugin = ['none']"
    )
