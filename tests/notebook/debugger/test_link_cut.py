"""Ranks at a prompt, and the link to them cut: what is typed arrives later, and Stop works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.notebook.kernels import Cell, LiveNotebook
from tests.providers.ssh.conftest import client, opened_over_ssh
from tests.waiting import until

__all__ = ["client"]

_STOPS = "%%sky --stdout all\nif rank == 1:\n    breakpoint()\n    mark = 5\nprint('past it')"


@pytest.fixture
def pair(lab: Lab, client: Path, tmp_path: Path) -> Iterator[LiveNotebook]:
    """A notebook with a cluster of two hosts, of which the second is rank 1."""
    with opened_over_ssh(client, tmp_path) as notebook:
        notebook.succeed(
            "%%sky --hosts lab1,lab2 --plugin none\n"
            "import jupyter_sky as sky\nrank = sky.instance_info().rank"
        )
        try:
            yield notebook
        finally:
            lab.plug_in()
            notebook.interrupt()  # a question that a test has left open


def _at_the_prompt(lab: Lab, notebook: LiveNotebook) -> Cell:
    """Start a cell that comes to a prompt, and pull the cable."""
    cell = notebook.start(_STOPS)
    assert notebook.question() == "(rank 1) "
    notebook.until(cell, lambda cell: cell.strips)
    shown = cell.snapshot
    request = {"action": "record", "cluster": shown["cluster"]["id"], "run": shown["run"]["id"]}
    lab.unplug()
    until(lambda: "no connection to" in notebook.say_action(request))
    return cell


def test_what_is_typed_without_a_link_arrives_when_it_is_back(lab: Lab, pair: LiveNotebook) -> None:
    cell = _at_the_prompt(lab, pair)
    pair.type("c")
    lab.plug_in()
    pair.finish(cell)
    assert cell.error is None, cell.traceback
    assert pair.succeed("%%sky --ranks 1\nprint(mark)").stdout == "5\n"


def test_stop_without_a_link_ends_the_cell_now_and_the_run_later(
    lab: Lab, pair: LiveNotebook
) -> None:
    cell = _at_the_prompt(lab, pair)
    pair.interrupt()
    pair.finish(cell)
    assert "stopped after" in cell.sentence
    lab.plug_in()
    assert pair.succeed("%%sky --ranks 1\nprint('mark' in globals())").stdout == "False\n"
