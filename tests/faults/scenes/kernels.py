"""Kernels that are frozen, two that come at once, and a Jupyter server that is killed."""

from __future__ import annotations

import contextlib
import http.client
import tempfile
import threading
import urllib.error
from pathlib import Path

import psutil

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.handle import RunHandle
from tests.cluster.conftest import Cells, start
from tests.faults.experience import Experience
from tests.faults.other_kernel import COUNTING, running_kernel
from tests.faults.parts import attach
from tests.faults.scenes.scene import Scene, feel
from tests.server.jupyter import Server, serve
from tests.waiting import PATIENCE


def _frozen() -> Experience:
    """Freeze a kernel while its cell runs; another one takes the run up, and stops it."""
    with running_kernel("scene-frozen") as kernel:
        process = psutil.Process(kernel.pid)
        taken: list[Cells] = []

        def told() -> str:
            taken.append(attach("scene-frozen"))
            run = taken[0].cluster.pop_unseen_run()
            assert run is not None
            _follow_a_little(run, taken[0])
            return "its run goes on here"

        felt = feel(process.suspend, told, lambda: taken[0].run("pass"))
        process.resume()
        # It learns that its run was stopped, and ends.
        assert kernel.wait(PATIENCE) == 0
        taken[0].cluster.down()
        return felt


def _follow_a_little(run: RunHandle, cells: Cells) -> None:
    """Stop a run as soon as something of it was shown; nothing may be missing of that."""

    def show(event: object) -> None:
        cells.events.append(event)  # type: ignore[arg-type]
        run.stop()

    with contextlib.suppress(Interrupted):
        run.follow(show)
    numbers = [int(line) for line in cells.text().split()]
    assert numbers == list(range(len(numbers)))


def _two_at_once() -> Experience:
    """Have two kernels take up a cluster at the same time, and both use it."""
    first = start(nodes=2, framework=False)
    name = first.cluster.name
    first.cluster.close()
    both: list[Cells] = []

    def come() -> None:
        threads = [threading.Thread(target=lambda: both.append(attach(name))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def go_on() -> None:
        for index, each in enumerate(both):
            each.run(f"x{index} = {index}")

    felt = feel(come, lambda: f"{len(both)} connected", go_on)
    assert both[0].ask("(x0, x1)") == [(0, 1)] * 2
    both[1].cluster.close()
    both[0].cluster.down()
    return felt


def _server_killed() -> Experience:
    """Kill a Jupyter server: its pages learn that, runs go on, and the next server lists them."""
    with (
        tempfile.TemporaryDirectory(prefix="sky-server-") as home,
        tempfile.TemporaryDirectory(prefix="sky-server-") as next_home,
    ):
        return _replaced(Path(home), Path(next_home))


def _replaced(home: Path, next_home: Path) -> Experience:
    cells = start(nodes=1, framework=False)
    run = cells.start(COUNTING)
    with serve(home) as server:
        server.until(cells.cluster.name, lambda entry: entry["state"] == "running")

        def told() -> str:
            while True:
                try:
                    server.clusters()
                except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
                    return "no answer from the server"

        def go_on() -> None:
            with serve(next_home) as successor:
                entry = successor.until(
                    cells.cluster.name, lambda entry: entry["state"] == "running"
                )
                assert successor.act(entry, "interrupt", {"run": None}).status == 200
                with contextlib.suppress(Interrupted):
                    run.follow(lambda event: None)

        try:
            return feel(lambda: _process_of(server).kill(), told, go_on)
        finally:
            cells.cluster.down()


def _process_of(server: Server) -> psutil.Process:
    """Return the process of a server that this one has started."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(str(server.folder) in word for word in child.cmdline()):
                return child
    raise AssertionError("the server is not there")


SCENES = (
    Scene("SIGSTOP of a kernel: another one attaches", _frozen, "its run goes on here"),
    Scene("two kernels attach at once", _two_at_once, "2 connected"),
    Scene(
        "kill -9 of a Jupyter server: the next one stops the run",
        _server_killed,
        "no answer from the server",
        usable=10.0,  # most of it is the start of a server
    ),
)
