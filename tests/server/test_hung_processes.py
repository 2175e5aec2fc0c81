"""Processes that do not answer.

What is asked of a kernel is done without it, and not by it later. A `jupyter sky` keeps neither the
sidebar from its answers nor the server up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from jupyter_sky.server import cli_process
from tests.notebook.panel import samples
from tests.server.jupyter import Kernel, Server, serve
from tests.waiting import PATIENCE, until

Open = Callable[[str], Kernel]


def test_a_kernel_that_hangs_is_passed_by(server: Server, opened: Open) -> None:
    kernel = opened("hangs.ipynb")
    cell = kernel.start(
        "%%sky --nodes 1 --cluster stuck\nprint('on', flush=True)\nimport time\ntime.sleep(600)"
    )
    entry = server.until("stuck", lambda entry: entry["kernels"] and entry["state"] == "running")
    process = psutil.Process(entry_pid(server, kernel))
    process.suspend()
    try:
        at = "rank 0 is at `time.sleep(600)`"
        until(lambda: at in server.act(entry, "where").json["said"])
        assert server.act(entry, "restart", {"ranks": None}).message == "the kernel does not answer"
        assert server.act(entry, "interrupt", {"run": None}).json == {"said": "stuck: stopped"}
    finally:
        process.resume()
    assert "KeyboardInterrupt" in kernel.finish(cell).traceback


def test_what_a_kernel_did_not_answer_to_it_does_not_do_later(
    server: Server, opened: Open, tmp_path: Path
) -> None:
    kernel = opened("keeps.ipynb")
    kernel.run("%%sky --nodes 1 --cluster kept\nkept = 'here'")
    entry = server.until("kept", lambda entry: entry["kernels"])
    os.mkfifo(gate := tmp_path / "gate")
    # A call into C that keeps Python to itself: messages arrive, and no thread can look at them.
    command = f"touch {tmp_path / 'begun'}; cat {gate}"
    cell = kernel.start(f"import ctypes; ctypes.PyDLL(None).system({command.encode()})")
    asked = f"clusters/{entry['id']}/variables"
    try:
        until((tmp_path / "begun").exists)
        until(lambda: server.sky(asked).status == 409)
        assert server.sky(f"clusters/{entry['id']}/runs/0a").message == "the kernel does not answer"
        assert server.act(entry, "restart", {"ranks": None}).message == "the kernel does not answer"
    finally:
        os.close(os.open(gate, os.O_WRONLY))
    kernel.finish(cell)
    until(lambda: server.sky(asked).status == 200)  # it looks at one message after the other
    assert server.sky(f"clusters/{entry['id']}/runs/0a").status == 404
    assert kernel.run("%%sky\nprint(kept)").stdout == "here\n"


def test_a_cluster_that_took_the_name_of_another_is_left_alone(
    server: Server, told: Callable[..., Path]
) -> None:
    told(samples.snapshot())
    entry = server.clusters()["shown"]
    with socket.create_server(("127.0.0.1", 0)) as kernel, ThreadPoolExecutor() as pool:
        ports = dict.fromkeys(("shell_port", "iopub_port", "stdin_port", "hb_port"), 1)
        ports["control_port"] = kernel.getsockname()[1]
        file = server.runtime / "kernel-k1.json"
        file.write_text(json.dumps({"transport": "tcp", "ip": "127.0.0.1", "key": "", **ports}))
        asking = pool.submit(server.act, entry, "down")
        kernel.settimeout(PATIENCE)
        connection, _ = kernel.accept()  # and that is all it does
        with connection:
            registry.remove(entry["id"])
            registry.record("0000000d", "shown", "local", {"nodes": 1})
            answer = asking.result()
    assert answer.message == (
        "that cluster no longer exists, and shown is another: nothing was done."
    )
    assert registry.with_id("0000000d")


def entry_pid(server: Server, kernel: Kernel) -> int:
    """The process id of a kernel that is busy."""
    [process] = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(f"kernel-{kernel.id}.json" in part for part in process.info["cmdline"] or ())
    ]
    return int(process.pid)


ACTS_FOR_EVER = """
import time
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.sidebar import actions

def act(*args):
    open({begun!r}, 'w').close()
    time.sleep(600)

Session.down = actions.restart_ranks = act
"""


@pytest.mark.parametrize(
    ("action", "body", "answered"),
    [
        ("down", {}, (200, "cut: ended; nothing is left running")),
        ("restart", {"ranks": None}, (409, "the kernel ended before it was done")),
    ],
)
def test_what_a_kernel_leaves_undone_when_it_ends(
    server: Server,
    opened: Open,
    tmp_path: Path,
    action: str,
    body: dict[str, Any],
    answered: tuple[int, str],
) -> None:
    kernel = opened(f"cut-{action}.ipynb")
    kernel.run("%%sky --nodes 1 --cluster cut\nprint('on')")
    begun = tmp_path / "begun"
    kernel.run(ACTS_FOR_EVER.format(begun=str(begun)))
    pid = kernel.pid
    entry = server.until("cut", lambda entry: entry["kernels"])
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(server.act, entry, action, body)
        until(begun.exists)
        os.kill(pid, signal.SIGKILL)
        answer = asking.result()
    assert (answer.status, next(iter(answer.json.values()))) == answered


# A server says when it waits for the result of a kernel, and its clock goes on by two hours then.
HOURS = """
import asyncio, os, time
from jupyter_sky.server import kernel_client

def result(*given):
    open({begun!r}, 'w').close()
    return usual(*given)

usual, kernel_client._result = kernel_client._result, result
asyncio.BaseEventLoop.time = lambda self: time.monotonic() + 7200 * os.path.exists({late!r})
"""

ACTS_UNTIL = """
import os, time
from jupyter_sky.notebook.sidebar import actions

def act(*args):
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    open({done!r}, 'w').close()
    return "restarted at last"

actions.restart_ranks = act
"""


def test_what_a_kernel_has_begun_may_take_hours(tmp_path: Path) -> None:
    """As nodes do that are to come from a queue."""
    begun, late, go, done = (tmp_path / each for each in ("begun", "late", "go", "done"))
    with serve(tmp_path, config=HOURS.format(begun=str(begun), late=str(late))) as server:
        kernel = server.open("slow.ipynb")
        kernel.run("%%sky --nodes 1 --cluster slow\nprint('on')")
        kernel.run(ACTS_UNTIL.format(go=str(go), done=str(done)))
        entry = server.until("slow", lambda entry: entry["kernels"])
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(server.act, entry, "restart", {"ranks": None})
            until(begun.exists)
            late.touch()
            answer = asking.result()
        assert "restart is taking a while, and continues in the" in answer.json["said"]
        assert server.clusters()["slow"]["note"] == entry["note"]  # it has not failed
        go.touch()
        until(done.exists)
        assert server.clusters()["slow"]["note"] == entry["note"]


# Undoes what it has half done, where it is asked to end.
UNDOES = """
trap 'echo "all of it is undone" >&2; exit 143' TERM
echo begun >&2
while :; do sleep 0.01; done
"""


def test_an_action_in_a_process_is_stopped_after_hours_so_that_it_can_undo_what_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli_process, "command", lambda *words, only: ["sh", "-c", UNDOES])
    with pytest.raises(SkyError) as said:
        asyncio.run(cli_process.run("scale", "4", acts=True, timeout=1))
    assert str(said.value) == (
        "`jupyter sky scale` was stopped as it took longer than 1 s: all of it is undone"
    )


FEW = 3
"""Whole logs that are read at once."""

MANY = 12
"""Whole logs that are asked for at once here."""


# What a server has in place of `jupyter sky`: it says what a file has, or hangs without one.
CONFIG = """\
from jupyter_sky.server import cli_process, status_poller
hangs = 'cat "$0" || exec sleep infinity'
cli_process.command = lambda *words, only: ["sh", "-c", hangs, "{said}"]
status_poller._TIMEOUT = {timeout}
"""


def record(identity: str, name: str) -> None:
    """Record a cluster that only a command can ask how it is."""
    registry.record(identity, name, "far", {"nodes": 1})
    registry.record_machines(identity, [{"nodes": [{"rank": 0}]}])


def test_a_command_that_hangs_is_given_up(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with serve(tmp_path, config=CONFIG.format(said=said, timeout=2)) as server:
        record("0000000a", "first")
        assert server.clusters()["first"]["state"] == "unknown"
        said.write_text(
            json.dumps([{"id": each, "state": "idle"} for each in ("0000000a", "0000000b")])
        )
        record("0000000b", "second")  # how that is, is asked at once
        server.until("second", lambda entry: entry["state"] == "ready")
        assert server.clusters()["first"]["state"] == "ready"
        said.unlink()
        record("0000000c", "third")
        # What was known is not shown for ever.
        server.until("first", lambda entry: entry["state"] == "unknown")


def test_what_the_command_says_of_clusters_of_this_computer_is_left_out(
    tmp_path: Path, alone: Cluster
) -> None:
    said = tmp_path / "said"
    found = {"0000000a": "idle", alone.id: "running"}
    said.write_text(json.dumps([{"id": each, "state": state} for each, state in found.items()]))
    with serve(tmp_path, config=CONFIG.format(said=said, timeout=60)) as server:
        record("0000000a", "far")
        server.until("far", lambda entry: entry["state"] == "ready")
        # It is seldom asked, and these are asked every two seconds.
        server.until(alone.name, lambda entry: entry["state"] != "unknown")
        assert server.clusters()[alone.name]["state"] == "ready"


SELDOM = """\
usual = status_poller._Poll
status_poller._Poll = lambda ask, interval: usual(ask, interval=3600)
"""


def test_a_cluster_that_was_started_again_is_asked_at_once(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text(json.dumps([{"id": "0000000a", "state": "stopped"}]))
    with serve(tmp_path, config=CONFIG.format(said=said, timeout=60) + SELDOM) as server:
        record("0000000a", "first")
        registry.change("0000000a", {"stopped": {"since": 0, "price": 0.1}})
        server.until("first", lambda entry: entry["state"] == "stopped")
        said.write_text(json.dumps([{"id": "0000000a", "state": "idle"}]))
        registry.change("0000000a", {"stopped": None})
        server.until("first", lambda entry: entry["state"] == "ready")


def test_the_server_ends_while_a_command_hangs(tmp_path: Path) -> None:
    with serve(tmp_path, config=CONFIG.format(said=tmp_path / "said", timeout=3600)) as server:
        record("0000000a", "first")
        server.clusters()
        [hung] = until(hanging)
    until(lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE)


DOWNLOADS_HANG = """\
from jupyter_sky.server import cli_process
commands = {
    "logs": ["sleep", "infinity"],
    "status": ["echo", '[{"id": "0000000a", "state": "idle"}]'],
    "down": ["echo", "first: ended"],
}
cli_process.command = lambda *words, only=None: commands[words[0]]
"""


def test_downloads_that_hang_keep_no_action_waiting(tmp_path: Path) -> None:
    # The server ends before the requests are waited for: its end is what answers them.
    with ThreadPoolExecutor(MANY) as pool, serve(tmp_path, config=DOWNLOADS_HANG) as server:
        record("0000000a", "first")
        for rank in range(MANY):
            pool.submit(server.sky, f"clusters/0000000a/logs/{rank}/file")
        until(lambda: len(hanging()) >= FEW)
        assert server.act({"id": "0000000a"}, "down").json == {"said": "first: ended"}
        server.until("first", lambda entry: entry["state"] == "ready")
        assert len(hanging()) == FEW  # the others wait for these


def hanging() -> list[psutil.Process]:
    """The commands that hang, of servers that this process has started."""
    below = psutil.Process().children(recursive=True)
    return [each for each in below if command_of(each) == ["sleep", "infinity"]]


def command_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or is a zombie
        return process.cmdline()
    return []
