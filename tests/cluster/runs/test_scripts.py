"""A script beside the ranks: bash on each node, with its output, its end, and how it is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_sky.cluster.errors import Interrupted, RemoteError
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import ScriptFailed, SkyError
from jupyter_sky.node.rank.scripts import _SIGTERM_AFTER
from jupyter_sky.transport.metrics import script_metrics
from jupyter_sky.transport.protocol.messages import Script
from tests.cluster.conftest import Cells, start
from tests.waiting import until

STOP_WITHIN = 5.0
"""Seconds after which a rank is killed that does not stop."""


@pytest.fixture(scope="module")
def pair(home: Path) -> Iterator[Cells]:
    """Two nodes with two ranks each."""
    cells = start(2, framework=False, procs_per_node=2, stop=STOP_WITHIN)
    yield cells
    cells.cluster.down()


def begin(
    cells: Cells,
    text: str,
    together: bool = True,
    show: tuple[int, ...] = (0,),
    ranks: tuple[int, ...] = (0, 2),
) -> RunHandle:
    cells.events = []
    script: Script = {
        "text": text,
        "env": {"WORD": "here"},
        "folders": [],
        "cwd": None,
        "together": together,
        "port": 0,
    }
    run = cells.cluster.run(Task(ranks, script=script, show=show))
    run.begin()
    return run


def finish(cells: Cells, run: RunHandle) -> None:
    run.follow(cells.events.append)
    run.check()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_runs_once_on_each_node_and_finds_the_others(pair: Cells) -> None:
    text = (
        "echo $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES, $SKYPILOT_NUM_GPUS_PER_NODE each, $WORD\n"
        'echo "$SKYPILOT_NODE_IPS" | wc -l\n'
        "echo $SKYPILOT_TASK_ID $MASTER_ADDR ${RANK-none} >&2\n"
        "[ $MASTER_PORT -gt 0 ] && python -c 'import socket, os; "
        'socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))\' '
        "|| [ $SKYPILOT_NODE_RANK = 1 ]"
    )
    run = begin(pair, text, show=(0, 2))
    finish(pair, run)
    assert pair.text(rank=0) == "0 of 2, 2 each, here\n2\n"
    assert pair.text(rank=2) == "1 of 2, 2 each, here\n2\n"
    name, head, rank = pair.text("stderr", 0).split()
    assert name.endswith(run.id)
    assert (head, rank) == ("127.0.0.1", "none")


def test_the_ranks_stay_as_they_are(pair: Cells) -> None:
    pair.run("kept = 1; import os; os.environ['FROM_A_CELL'] = 'yes'")
    finish(pair, begin(pair, "echo $FROM_A_CELL"))
    assert pair.text() == "yes\n"
    assert pair.ask("kept") == [1, 1, 1, 1]


def test_it_finds_programs_of_the_ranks_first_also_if_the_user_has_chosen_a_path(
    pair: Cells,
) -> None:
    pair.run("import os; former = os.environ['PATH']; os.environ['PATH'] = os.defpath")
    finish(pair, begin(pair, "command -v python; echo $PATH"))
    own = Path(sys.executable)
    assert pair.text() == f"{own.with_name('python')}\n{own.parent}:{os.defpath}\n"
    pair.run("os.environ['PATH'] = former")


def test_what_the_group_needs_is_for_the_ranks_alone(cells: Cells) -> None:
    # With it, a collective of the script's own that timed out would leave it to go on.
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    cells.run(f"import os; [keeps] = {{os.environ[{name!r}]}}")
    finish(cells, begin(cells, f"echo ${{{name}-as usual}}", ranks=(0, 1)))
    assert cells.text() == "as usual\n"
    cells.run(f"os.environ[{name!r}] = '1'")
    finish(cells, begin(cells, f"echo ${name}", ranks=(0, 1)))
    assert cells.text() == "1\n"
    cells.run(f"os.environ[{name!r}] = keeps")


def test_an_exit_status_is_the_error_of_its_node(pair: Cells) -> None:
    text = "echo before; [ $SKYPILOT_NODE_RANK = 0 ] || { echo told on stderr >&2; exit 3; }"
    run = begin(pair, text)
    with pytest.raises(ScriptFailed) as failed:
        finish(pair, run)
    error = failed.value
    assert isinstance(error, RemoteError)
    assert error.status == 3
    assert str(error) == "the script ended with exit status 3"
    assert error.rank == 2
    # The last lines of a node whose output is not shown.
    assert error.remote_traceback.splitlines()[:2] == ["before", "told on stderr"]
    # The log had them already.
    assert pair.cluster.log(2).data.count(b"told on stderr") == 1
    with pytest.raises(ScriptFailed) as failed:
        finish(pair, begin(pair, text, show=(0, 2)))
    assert "told" not in failed.value.remote_traceback


def test_a_failure_ends_the_script_on_the_other_nodes_if_they_belong_together(
    pair: Cells, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    text = (
        f"[ $SKYPILOT_NODE_RANK = 0 ] && {{ echo $$; touch {said}; exec sleep 1000; }}\n"
        f"until [ -e {said} ]; do sleep 0.05; done; exit 1"
    )
    with pytest.raises(ScriptFailed):
        finish(pair, begin(pair, text))
    assert gone(int(pair.text()))


def test_where_they_do_not_belong_together_the_others_go_on(pair: Cells, tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f"[ $SKYPILOT_NODE_RANK = 1 ] && exit 4; until [ -e {go} ]; do sleep 0.05; done; echo on"
    run = begin(pair, text, together=False)
    until(lambda: run._run.failures)
    assert not run.finished
    go.touch()
    with pytest.raises(ScriptFailed, match="exit status 4"):
        finish(pair, run)
    assert pair.text() == "on\n"


def test_stop_ends_all_processes_of_it(pair: Cells, tmp_path: Path) -> None:
    # One ignores both signals, one is in a session of its own, one is a daemon.
    text = (
        f"cd {tmp_path}; trap '' INT TERM\n"
        "setsid sleep 1000 & (setsid sleep 1001 &)\n"
        "sleep 1002 & echo $$ > me-$SKYPILOT_NODE_RANK; wait; wait; wait; sleep 1003"
    )
    run = begin(pair, text)
    files = [tmp_path / "me-0", tmp_path / "me-1"]
    until(lambda: all(file.exists() and file.read_text() for file in files))
    until(lambda: len(processes(run)) == 8)
    run.stop()
    with pytest.raises(Interrupted):
        finish(pair, run)
    assert not processes(run)
    assert pair.ask("1") == [1, 1, 1, 1]


def test_what_reacts_to_an_interrupt_may_do_so(pair: Cells) -> None:
    # Whole lines at once: `print` writes the end of a line by itself, when Stop may have come.
    code = (
        'import os, time\ntry:\n    os.write(1, b"1\\n")\n    time.sleep(1000)\n'
        'finally:\n    os.write(1, b"2\\n")'
    )
    text = f"exec python -c '{code}'"
    run = begin(pair, text)
    run.follow(lambda event: (pair.events.append(event), run.stop()))
    assert pair.text() == "1\n2\n"


def test_a_node_that_stood_still_gives_its_script_the_time_to_react(
    pair: Cells, tmp_path: Path
) -> None:
    [rank] = [each.pid for each in pair.cluster.state.ranks if each.rank == 0]
    # In several parts: a single sleep would be over when the node goes on.
    save = "touch saving; for part in 1 2 3 4 5; do sleep 0.1; done; echo saved; exit 1"
    text = f"cd {tmp_path}; trap '{save}' INT; touch begun; while true; do sleep 0.1; done"
    run = begin(pair, text, ranks=(0,))
    until((tmp_path / "begun").exists)
    run.stop()
    until((tmp_path / "saving").exists)
    node = psutil.Process(rank)
    asleep = [node, *node.children(recursive=True)]
    for each in asleep:
        with contextlib.suppress(psutil.NoSuchProcess):  # a part of its sleep is over
            each.suspend()
    time.sleep(1.2 * _SIGTERM_AFTER * STOP_WITHIN)  # of which they have nothing
    for each in asleep:
        with contextlib.suppress(psutil.NoSuchProcess):  # the shell has just heard of that
            each.resume()
    with pytest.raises(Interrupted):
        finish(pair, run)
    assert pair.text() == "saved\n"


def test_a_script_that_is_killed_is_said(pair: Cells) -> None:
    with pytest.raises(ScriptFailed, match="the script was killed by SIGKILL") as failed:
        finish(pair, begin(pair, "kill -9 $$"))
    assert failed.value.status == 137
    with pytest.raises(ScriptFailed, match=r"status 137 \(a command was killed by SIGKILL\)"):
        finish(pair, begin(pair, "bash -c 'kill -9 $$'"))


def test_what_it_leaves_ends_with_it(pair: Cells) -> None:
    until_it_sleeps = "until [ $(cat /proc/$!/comm) = sleep ]; do sleep 0.05; done"
    run = begin(pair, f"setsid sleep 1000 & {until_it_sleeps}; echo done")
    finish(pair, run)
    assert pair.text() == "done\n"
    assert "left them running: sleep" in pair.text("stderr")
    assert not processes(run)


def test_stop_while_what_it_left_is_ended_leaves_nothing_of_it_on_the_node(
    pair: Cells, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    run = begin(
        pair,
        f'(trap "kill -INT $PPID; exit" TERM; touch {ready}; while true; do sleep 0.05; done) &\n'
        f"until [ -e {ready} ]; do sleep 0.05; done; echo $0 ${script_metrics.PATH}",
        ranks=(0,),
    )
    with pytest.raises(Interrupted):
        finish(pair, run)
    assert [Path(name).exists() for name in pair.text().split()] == [False, False]
    threads = pair.ask("{each.name for each in __import__('threading').enumerate()}")[0]
    assert "sky-script-metrics" not in threads


def test_nothing_of_it_is_in_the_arguments(pair: Cells) -> None:
    run = begin(pair, "PASSWORD=very-secret; echo up; sleep 1000")
    words: list[str] = []

    def look(event: object) -> None:
        words.extend(word for each in processes(run) for word in each.cmdline())
        run.stop()

    run.follow(look)
    assert any(word.endswith(".sh") for word in words)
    assert not any("very-secret" in word for word in words)


def test_a_head_whose_files_are_all_open_keeps_its_variables(pair: Cells) -> None:
    """It cannot listen where the processes of a script would meet."""
    pair.run(
        "import resource\n"
        "usual = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, usual[1]))  # as if all were taken",
        ranks=[0],
    )
    with pytest.raises(SkyError, match="rank 0 cannot listen on .*: close files that cells have"):
        finish(pair, begin(pair, "true"))
    pair.run("resource.setrlimit(resource.RLIMIT_NOFILE, usual)", ranks=[0])
    finish(pair, begin(pair, "true"))


def processes(run: RunHandle) -> list[psutil.Process]:
    """Return what is left of a script on all nodes."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("JUPYTER_SKY_SCRIPT", "")
            if mark.startswith(run.id) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
