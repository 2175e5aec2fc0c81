"""The magic in a real kernel: live output, Stop, restarts, and input that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.conftest import processes_of

Message = dict[str, Any]


class Kernel:
    """A kernel that cells are typed into, as a frontend does it."""

    def __init__(self, notebook: str) -> None:
        environment = {**os.environ, "JPY_SESSION_NAME": notebook}
        self.manager: KernelManager
        self.manager, self.client = start_new_kernel(env=environment)
        self.messages: list[Message] = []

    def run(self, cell: str, see: Callable[[Message], object] = lambda message: None) -> Message:
        """Run a cell and return the reply; what it showed is in ``messages``."""
        self.messages = []

        def hook(message: Message) -> None:
            self.messages.append(message)
            see(message)

        return self.client.execute_interactive(cell, output_hook=hook, timeout=100)["content"]

    def ok(self, cell: str, see: Callable[[Message], object] = lambda message: None) -> str:
        reply = self.run(cell, see)
        assert reply["status"] == "ok", "\n".join(reply["traceback"])
        return self.text

    @property
    def text(self) -> str:
        parts = []
        for message in self.messages:
            content = message["content"]
            parts.append(content.get("text", "") + content.get("data", {}).get("text/plain", ""))
        return "\n".join(parts)

    def close(self) -> None:
        if self.manager.is_alive():
            self.run("%sky down")
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def start() -> Iterator[Callable[[str], Kernel]]:
    kernels: list[Kernel] = []

    def make(notebook: str) -> Kernel:
        kernels.append(Kernel(notebook))
        kernels[-1].ok("%load_ext jupyter_sky")
        return kernels[-1]

    yield make
    for kernel in kernels:
        kernel.close()


def test_a_line_is_seen_while_the_cell_runs(start, tmp_path: Path) -> None:
    kernel = start("live.ipynb")
    go = tmp_path / "go"

    def see(message: Message) -> None:
        # The cell waits for this file: were the line held back, it would wait for ever.
        if "first" in message["content"].get("text", ""):
            go.touch()

    kernel.ok("%%sky --nodes 2 --plugin none\nimport os, time")
    kernel.ok(f"go = {str(go)!r}")
    cell = "%%sky\nprint('first')\nwhile not os.path.exists(go): time.sleep(0.01)\nprint('last')"
    kernel.ok(cell, see)
    assert "first" in kernel.text
    assert "last" in kernel.text


def test_a_failing_cell_fails_and_the_next_one_runs(start) -> None:
    kernel = start("failing.ipynb")
    reply = kernel.run("%%sky --nodes 2 --plugin none\nraise KeyError('gone')")
    assert reply["status"] == "error"
    assert reply["ename"] == "KeyError"
    kernel.ok("%%sky\n1")


def test_the_kernel_s_interrupt_stops_every_rank(start) -> None:
    kernel = start("interrupted.ipynb")
    kernel.ok("%%sky --nodes 2 --plugin none\nimport time")

    def see(message: Message) -> None:
        if "here" in message["content"].get("text", ""):
            kernel.manager.interrupt_kernel()

    reply = kernel.run("%%sky\nprint('here')\nwhile True: time.sleep(0.1)", see)
    assert reply["status"] == "error"
    assert "ranks 0-1 stopped" in reply["evalue"]
    assert len(reply["traceback"]) == 1
    kernel.ok("%%sky\nassert time")


def test_a_restarted_kernel_finds_its_cluster_and_says_so(start) -> None:
    kernel = start("restarted.ipynb")
    kernel.ok("%%sky --nodes 2 --plugin none --gather kept\nkept = 42")
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    kernel.ok("%load_ext jupyter_sky")
    text = kernel.ok("%%sky --gather kept\nkept += 1")
    assert "still up: connected again" in text
    assert "[43, 43]" in kernel.ok("print(kept)")


def test_two_notebooks_have_two_clusters(start) -> None:
    one, two = start("here/same.ipynb"), start("there/same.ipynb")
    one.ok("%%sky --nodes 1 --plugin none\nmine = 1")
    two.ok("%%sky --nodes 1 --plugin none\nmine = 2")
    one.ok("%%sky\nassert mine == 1")
    two.ok("%%sky\nassert mine == 2")


BAD = {
    "%%sky --nods 4\n1": "did you mean `--nodes`",
    "%%sky --nodes four\n1": "whole number",
    "%%sky --nodes 0\n1": "--nodes takes a whole number",
    "%%sky --gpu A1000\n1": "did you mean A100",
    "%%sky --nodes 2 --gpu H100:8\n1": "this machine has",
    "%%sky --plugin tensorflow --nodes 2\n1": "there is no plugin tensorflow",
    "%%sky --provider moon --nodes 2\n1": "moon",
    "%%sky\n1": "no cluster is running yet",
    "%%sky --nodes 2\nx = = 1": "invalid syntax",
    "%%sky --nodes 2 --in nothing\n1": "the notebook has no nothing",
    "%sky fly": "fly",
    "%sky down": "there is no cluster",
    "%sky logs 3": "no cluster is running",
}


def test_bad_input_is_one_sentence_and_starts_nothing(start, home: Path) -> None:
    kernel = start("bad.ipynb")
    before = len(processes_of(home))
    for cell, sentence in BAD.items():
        reply = kernel.run(cell)
        assert reply["status"] == "error", cell
        assert sentence in "\n".join([reply["evalue"], *reply["traceback"]]), cell
        assert "jupyter_sky/" not in "\n".join(reply["traceback"]), cell
        assert len(reply["traceback"]) == 1, cell
    assert len(processes_of(home)) == before


def test_a_lost_cluster_is_said_and_the_cell_brings_it_back(start) -> None:
    kernel = start("lost.ipynb")
    kernel.ok("%%sky --nodes 2 --plugin none\n1")
    kernel.ok("import os, signal\nfrom jupyter_sky.cluster import registry")
    kernel.ok("[os.kill(row.machines[0]['pid'], signal.SIGKILL) for row in registry.rows()]")
    reply = kernel.run("%%sky\n1")
    if reply["status"] == "error":
        assert len(reply["traceback"]) == 1
        assert "Run the cell again" in reply["evalue"]
    kernel.ok("%%sky\n1")


def test_loading_twice_and_unloading(start) -> None:
    kernel = start("twice.ipynb")
    kernel.ok("%reload_ext jupyter_sky")
    kernel.ok("%%sky --nodes 1 --plugin none\n1")
    kernel.ok("%sky down")
    kernel.ok("%unload_ext jupyter_sky")
    kernel.run("%%sky\n1")
    kernel.ok("%load_ext jupyter_sky")
