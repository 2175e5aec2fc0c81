"""``%%sky --sh``: a shell block on every node."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.errors import ScriptFailed, SkyError, UsageError
from tests.notebook.conftest import Notebook
from tests.waiting import until


def test_a_shell_block_runs_on_every_node(notebook: Notebook) -> None:
    out = notebook.run(
        "%%sky --nodes 2 --procs-per-node 2 --sh --stdout all\n"
        "# Who is where\n"
        'echo "node $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES"'
    )
    assert "0 │ node 0 of 2\n" in out
    assert "2 │ node 1 of 2\n" in out
    # Any rank of a node stands for its script.
    assert notebook.run("%%sky --sh --stdout 3\necho $SKYPILOT_NODE_RANK") == "1\n"
    assert notebook.run("%%sky --sh --ranks 3 --stdout 2\necho $SKYPILOT_NODE_RANK") == "0\n"
    assert notebook.run("%%sky --sh --ranks 3 --stdout head\necho there") == "there\n"
    assert notebook.run("%%sky --sh --ranks 3\necho $SKYPILOT_NUM_NODES") == "1\n"
    notebook.run("%%sky --sh --background\necho slowly")
    background = notebook.namespace["_"]
    assert background.result(60) == {}
    assert background.output == "slowly\n"
    assert "· echo slowly: done" in repr(background)
    with pytest.raises(ScriptFailed, match="exit status 7"):
        notebook.run("%%sky --sh\nexit 7")
    with pytest.raises(UsageError, match="--out is about names of Python: leave it out beside"):
        notebook.run("%%sky --sh --out x\nx=1")
    with pytest.raises(UsageError, match="--pdb is for cells of Python: leave it out beside"):
        notebook.run("%%sky --sh --pdb\nls")
    of_windows = "if true; then\r\n  echo well\r\nfi\r\n"
    assert notebook.run(f"%%sky --sh\n{of_windows}") == "well\n"
    log = notebook.run("%sky logs 2")
    assert "node 1 of 2\n" in log


def test_a_script_has_what_the_notebook_has_set_since(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%%sky --nodes 2 --sh\ntrue")
    monkeypatch.setenv("TOKEN_OF_MINE", "a b")
    line = 'echo "<$TOKEN_OF_MINE>"'
    assert notebook.run(f"%%sky --sh\n{line}") == "<a b>\n"
    monkeypatch.delenv("TOKEN_OF_MINE")
    assert notebook.run(f"%%sky --sh\n{line}") == "<>\n"
    # A task's own value is the last word.
    monkeypatch.setenv("TOKEN_OF_MINE", "here")
    task = tmp_path / "task.yaml"
    task.write_text(f"envs: {{TOKEN_OF_MINE: of the task}}\nrun: |\n  {line}\n")
    assert "<of the task>" in notebook.run(f"%sky launch {task} --num-nodes 2")
    # One that a cell asks for again reaches scripts as well.
    notebook.run("%sky down")
    notebook.run("%%sky --nodes 1 --variable ASKED=1 --sh\ntrue")
    assert notebook.run("%%sky --variable ASKED=2 --sh\necho $ASKED") == "2\n"


def test_an_environment_that_is_too_large_for_a_script_is_said_to_be(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%%sky --nodes 1 --sh\ntrue")
    monkeypatch.setenv("LARGE", "x" * 200_000)
    with pytest.raises(SkyError, match=r"^the script was not started, .*: LARGE has 200 kB; put i"):
        notebook.run("%%sky --sh\ntrue")
    monkeypatch.delenv("LARGE")
    assert notebook.run("%%sky --sh\necho well") == "well\n"


def test_a_cluster_is_not_scaled_while_a_script_runs(notebook: Notebook, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    waiting = f"while [ ! -e {stop} ]; do sleep 0.1; done; echo $SKYPILOT_NUM_NODES"
    notebook.run(f"%%sky --nodes 2 --cluster busy --sh --background\n{waiting}")
    notebook.run("run = _")
    with pytest.raises(UsageError, match="cluster busy is busy: scale it when the run is over, or"):
        notebook.run("%sky scale 3")
    stop.touch()
    notebook.run("run.result()")
    notebook.run("%sky scale 3")
    assert notebook.run("%%sky --sh\necho $SKYPILOT_NUM_NODES") == "3\n"


def test_a_script_that_takes_its_time_after_stop_is_said_to(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("%%sky --nodes 1\nkept = 5")
    begun = tmp_path / "begun"

    def stop() -> None:
        until(begun.exists)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=stop)
    waiting.start()
    said = "the script of rank 0 has not ended yet: .* and the ranks keep their variables"
    with pytest.raises(KeyboardInterrupt, match=said):
        notebook.run(f"%%sky --sh\ntrap '' INT TERM\ntouch {begun}\nwhile true; do sleep 0.1; done")
    waiting.join()
    notebook.run("%%sky --gather kept\npass")
    assert notebook.namespace["kept"] == [5]


@contextlib.contextmanager
def _frozen(rank: int) -> Iterator[None]:
    """Let a rank be as slow as it is on a busy machine: what comes finds it idle."""
    os.kill(rank, signal.SIGSTOP)
    try:
        until(lambda: all("T (stopped)" in each for each in _threads(rank)))
        yield
    finally:
        os.kill(rank, signal.SIGCONT)


_TWO = "%%sky --nodes 1 --procs-per-node 2 --gather pid\nimport os\nkept, pid = 5, os.getpid()"


def test_stop_of_a_script_that_has_not_begun_yet_keeps_the_rank(notebook: Notebook) -> None:
    notebook.run(_TWO)
    rank = notebook.namespace["pid"][1]
    with _frozen(rank):
        notebook.run("%%sky --sh --background --ranks 1\nsleep 600")
        notebook.run("run = _")
        until(lambda: "running" in notebook.run("%sky status"))  # else it is stopped unsent
        assert notebook.run("%sky interrupt").endswith(": stopping\n")
        until(lambda: _is_pending(rank, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        notebook.run("run.result()")
    notebook.run("%%sky --gather kept\npass")
    assert notebook.namespace["kept"] == [5, 5]


def test_stop_before_a_script_is_sent_is_no_stop_of_nothing(notebook: Notebook) -> None:
    notebook.run(_TWO)
    head = notebook.namespace["pid"][0]
    with _frozen(head):  # which reserves a port for it first
        notebook.run("%%sky --sh --background\nsleep 600")
        assert notebook.run("run = _\n%sky interrupt").endswith(": stopping\n")
        with pytest.raises(KeyboardInterrupt, match="the run was stopped before it began"):
            notebook.run("run.result()")
    assert notebook.run("%%sky --sh\necho on").endswith("on\n")


def _threads(pid: int) -> list[str]:
    return [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]


def _is_pending(pid: int, number: signal.Signals) -> bool:
    pending = int(_threads(pid)[0].split("ShdPnd:")[1].split()[0], 16)
    return bool(pending >> (number - 1) & 1)
