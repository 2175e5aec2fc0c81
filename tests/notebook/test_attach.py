"""Kernels that end while a run goes on, and others that take it up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.kernels import LiveNotebook

COUNTING = (
    "%%sky --nodes 2 --plugin none --out last --gather mine\n"
    "import os, time\n"
    "for n in range({}):\n    print(n, flush=True)\n    time.sleep(0.02)\n"
    "last = n\nmine = os.getpid()"
)


@pytest.mark.parametrize("now", [True, False], ids=["killed", "asked to end"])
def test_a_restarted_kernel_takes_a_run_up(
    opened: Callable[..., LiveNotebook], tmp_path: Path, now: bool
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    wait = f"while n == 150 and not os.path.exists({str(go)!r}): time.sleep(0.01)"
    cell = notebook.start(COUNTING.format(200).replace("time.sleep(0.02)", wait))
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart(now)
    notebook.succeed("%load_ext jupyter_sky")
    refused = notebook.run("%%sky\npass")
    assert "follow it with `%sky attach`, or stop it with `%sky interrupt`" in refused.sentence
    go.touch()
    attached = notebook.succeed("%sky attach")
    first, second, *lines = attached.stdout.splitlines()
    assert "cells without --cluster use it now" in first
    assert second.endswith("` was started by an earlier kernel")
    assert lines == [str(n) for n in range(200)]
    assert notebook.value("last") == 199
    assert notebook.value("len(set(mine))") == 2
    notebook.succeed("%%sky\npass")
    assert len(notebook.succeed("%sky attach").stdout.splitlines()) == 1


def test_a_run_that_ended_meanwhile_is_shown_once(opened: Callable[..., LiveNotebook]) -> None:
    notebook = opened()
    cell = notebook.start(COUNTING.format(60))
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky\nimport time\ntime.sleep(3)")
    lines = notebook.succeed("%sky attach").stdout.splitlines()[2:]
    assert lines == [str(n) for n in range(60)]
    assert notebook.value("last") == 59
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    assert len(notebook.succeed("%sky attach").stdout.splitlines()) == 1


def test_an_error_that_came_meanwhile_is_raised(opened: Callable[..., LiveNotebook]) -> None:
    notebook = opened()
    cell = notebook.start(
        "%%sky --nodes 2 --plugin none\nimport time\nprint('here', flush=True)\n"
        "time.sleep(2)\nraise ValueError('too late')"
    )
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    failed = notebook.run("%sky attach")
    assert "ValueError: too late" in failed.traceback
