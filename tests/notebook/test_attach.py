"""Kernels that end while a run goes on, and others that take it up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.notebook import kernel
from jupyter_sky.providers import providers
from jupyter_sky.providers.spec import ClusterSpec
from tests.lab import wheels
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until

COUNTING = (
    "%%sky --nodes 2 --plugin none --out last --gather mine\n"
    "import os, time\n"
    "for n in range({count}):\n    print(n, flush=True)\n"
    "    while n == {at} and not os.path.exists({go!r}): time.sleep(0.01)\n"
    "last = n\nmine = os.getpid()"
)
"""Counts up to a number, at which it waits for a file."""


def wait_for_end_of_run() -> None:
    """Wait until the cluster has nothing to do, as one sees who is not its notebook."""
    until(lambda: probe(registry.rows(), providers())[0].phase is ProbePhase.IDLE)


@pytest.mark.parametrize("now", [True, False], ids=["killed", "asked to end"])
def test_a_restarted_kernel_takes_a_run_up(
    opened: Callable[..., LiveNotebook], tmp_path: Path, now: bool
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    cell = notebook.start(COUNTING.format(count=200, at=150, go=str(go)))
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


def test_what_one_rank_was_to_gather_is_a_list(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    code = COUNTING.format(count=20, at=10, go=str(go)).replace("--nodes 2", "--nodes 1")
    cell = notebook.start(code)
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    notebook.succeed("%sky attach")
    assert notebook.value("last") == 19
    assert notebook.value("type(mine).__name__, len(mine)") == ("list", 1)


def test_a_kernel_that_stood_still_reads_whether_it_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell: Any = SimpleNamespace(kernel=object(), exit_now=False)
    slept: list[float] = []
    clock = time.monotonic

    def sleep(seconds: float) -> None:
        """Stand still at first; the request has come then, and is read a moment later."""
        shell.exit_now = bool(slept)
        slept.append(seconds)

    minute = SimpleNamespace(monotonic=lambda: clock() + 60.0 * len(slept), sleep=sleep)
    monkeypatch.setattr(kernel, "time", minute)
    assert kernel.is_ending(shell)


def test_a_run_that_ended_meanwhile_is_shown_once(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    cell = notebook.start(COUNTING.format(count=60, at=30, go=str(go)))
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    wait_for_end_of_run()
    lines = notebook.succeed("%sky attach").stdout.splitlines()[2:]
    assert lines == [str(n) for n in range(60)]
    assert notebook.value("last") == 59
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    assert len(notebook.succeed("%sky attach").stdout.splitlines()) == 1


def test_an_error_that_came_meanwhile_is_raised(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    cell = notebook.start(
        "%%sky --nodes 2 --plugin none\nimport os, time\nprint('here', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise ValueError('too late')"
    )
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    wait_for_end_of_run()
    failed = notebook.run("%sky attach")
    assert "ValueError: too late" in failed.traceback


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("retry", ["--retry 3", ""])
def test_how_to_go_on_is_said_where_the_kernel_of_further_attempts_has_ended(
    opened: Callable[..., LiveNotebook], tmp_path: Path, retry: str, saves: bool
) -> None:
    notebook = opened()
    go, checkpoint = tmp_path / "go", tmp_path / "checkpoint"
    notebook.succeed(
        f"%%sky --nodes 2 --plugin none --background {retry}\n"
        "import os, signal, time, jupyter_sky as sky\n"
        # Ranks without a process group save one by one, so one does.
        "rank = sky.instance_info().rank\n"
        f"if {saves} and rank == 0: sky.save({str(checkpoint)!r}, step=20)\n"
        f"open({str(tmp_path)!r} + f'/here-{{rank}}', 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)"
    )
    until(lambda: len(list(tmp_path.glob("here-*"))) == 2)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    failed = notebook.run("%sky attach")
    assert "rank 1 is lost: it was killed by SIGKILL" in failed.traceback
    load = f"`sky.load({str(checkpoint)!r}, …)` to go on from the last checkpoint, of step 20"
    assert (load in failed.stdout) == saves
    assert ("no further attempt of `--retry` begins" in failed.stdout) == bool(retry)


def test_a_kernel_that_attaches_knows_the_values_of_variables(
    opened: Callable[..., LiveNotebook],
) -> None:
    notebook = opened()
    notebook.succeed("%%sky --nodes 2 --plugin none --variable A=old --variable B=kept\npass")
    notebook.succeed("%%sky --variable A=new\npass")
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky\n%sky attach")
    look = "%%sky --stdout all\nimport os\nprint(os.environ['A'], os.environ['B'])"
    assert notebook.succeed(look).stdout.count("new kept\n") == 2
    for change in ("%sky restart", "%sky scale 3"):
        notebook.succeed(change)
        seen = notebook.succeed(look).stdout
        assert seen.count("new kept\n") == len(seen.splitlines())
    [agent] = {machine["pid"] for machine in registry.rows()[0].machines}
    assert notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)").error
    assert notebook.succeed(look).stdout.count("new kept\n") == 3


def test_two_notebooks_hear_once_of_each_other_and_one_follows_what_the_other_runs(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    first, second = opened("first"), opened("second")
    first.succeed("x = 1")
    first.succeed("%%sky --nodes 2 --plugin none --cluster both\nx")
    second.succeed("%sky attach both\nx = 2")
    assert second.succeed("%%sky\nprint(x)").shown == []
    cell = first.succeed("%%sky\nprint(x)")
    assert cell.stdout == "2\n"
    [said] = cell.shown
    assert said.startswith("both: another notebook or terminal has run something here too: of a")
    assert first.succeed("%%sky\nprint(x)").shown == []
    first.succeed("%sky push x")
    cell = second.succeed("%%sky\nprint(x)")
    assert cell.stdout == "1\n"
    assert cell.shown == [said]
    go = tmp_path / "go"
    mine = first.start(COUNTING.format(count=9, at=5, go=str(go)).replace(" --nodes 2", ""))
    first.until(mine, lambda cell: "5\n" in cell.stdout)
    seen = second.start("%sky attach both")
    second.until(seen, lambda cell: "5\n" in cell.stdout)
    go.touch()
    assert second.finish(seen).stdout.splitlines()[2:] == [str(n) for n in range(9)]
    assert first.finish(mine).stdout == "".join(f"{n}\n" for n in range(9))
    assert second.value("last") == first.value("last") == 8
    go.unlink()
    mine = first.start(COUNTING.format(count=9, at=5, go=str(go)).replace(" --nodes 2", ""))
    first.until(mine, lambda cell: "5\n" in cell.stdout)
    second.succeed("%%sky --background --out waited\nwaited = 1")
    said = second.succeed("waits = _\n%sky interrupt").stdout
    assert "stopping the run of another notebook or program; the one of this notebook that" in said
    assert "not by this notebook" in first.finish(mine).sentence
    second.succeed("waits.result()")
    assert second.value("waited") == 1


def test_notebooks_that_start_a_cluster_at_once_get_the_same(
    opened: Callable[..., LiveNotebook],
) -> None:
    first, second = opened("first"), opened("second")
    code = "%%sky --nodes 2 --cluster both --gather mine\nimport os\nmine = os.getpid()"
    starts = first.start(code)
    until(lambda: registry.find("both") is not None)
    joins = second.start(code)
    assert first.finish(starts).error is None
    joined = second.finish(joins)
    assert joined.error is None
    # Which one is quicker decides whether the second waits, and hears of the other's cell.
    [found] = [line for line in joined.shown if line.endswith("up: connected again")]
    assert found.startswith("both: 2 local nodes,")
    assert first.value("mine") == second.value("mine")
    refused = second.run("%%sky --nodes 3 --cluster both\npass")
    assert "is running with --nodes 2, and the cell asks for 3" in refused.sentence


def test_a_cluster_is_started_by_the_next_where_another_notebook_gives_it_up(
    opened: Callable[..., LiveNotebook],
) -> None:
    notebook = opened()
    registry.record("0123abcd", "soon", "local", registry.describe(ClusterSpec("soon"), []))
    cell = notebook.start("%%sky --nodes 1 --plugin none --cluster soon\nprint('here')")
    waits = "soon: waiting for another notebook or program, which starts it"
    notebook.until(cell, lambda cell: waits in cell.shown)
    registry.remove("0123abcd")
    assert notebook.finish(cell).stdout == "here\n"


AT_NEWS = """\
import os, signal, sys

def stop_at_news(frame, event, value):
    if event == "call" and frame.f_code.co_name == "take_up_additions":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(stop_at_news)
"""


def test_ctrl_c_does_not_lose_what_another_notebook_has_added(
    opened: Callable[..., LiveNotebook],
) -> None:
    first, second = opened("first"), opened("second")
    first.succeed("%sky up --nodes 1 --plugin none --cluster both --variable A=old")
    second.succeed("%sky attach both")
    second.succeed("%%sky --variable A=new\npass")
    first.succeed(AT_NEWS)
    assert "the cell was stopped" in first.run("%%sky\npass").sentence
    first.succeed("%%sky\npass")
    # The one that starts it again has what the other has added.
    second.succeed("%sky down")
    first.succeed("%%sky --out a\nimport os\na = os.environ['A']")
    assert first.value("a") == "new"


def test_what_another_notebook_has_installed_stays(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    first, second = opened("first"), opened("second")
    for name in ("greeting", "parting"):
        wheels.write(tmp_path / name, name, "1.0", **{name: ""})
    first.succeed("%%sky --cluster c --nodes 1 --plugin none\npass")
    second.succeed("%sky attach c")
    first.succeed(f"%sky pip install greeting --wheels {tmp_path / 'greeting'}")
    second.succeed(f"%sky pip install parting --wheels {tmp_path / 'parting'}")
    first.succeed("%sky scale 2")
    for notebook in (first, second):
        notebook.succeed("%%sky\nimport greeting, parting")
    # Who of them starts it again knows what the other has added.
    [agent] = {machine["pid"] for machine in registry.rows()[0].machines}
    assert first.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)").error
    first.succeed("%%sky\nimport greeting, parting")


@pytest.mark.parametrize("line", ["%sky down c", "%%sky --cluster c\nx = 3", "%sky restart"])
def test_a_cluster_that_another_notebook_has_started_again_is_meant(
    opened: Callable[..., LiveNotebook], line: str
) -> None:
    first, second = opened("first"), opened("second")
    first.succeed("%%sky --cluster c --nodes 1 --plugin none\npass")
    second.succeed("%sky attach c")
    [row] = registry.rows()
    die = f"%%sky --cluster c\nimport os, time\nos.kill({row.machines[0]['pid']}, 9)\ntime.sleep(9)"
    assert second.run(die).sentence.startswith("ClusterLost: ")
    second.succeed("%%sky --cluster c\nx = 2")
    [again] = registry.rows()
    assert again.id != row.id
    cell = first.succeed(line)
    if "down" in line:
        assert registry.rows() == []
        # It has ended; the template that it was forked from may not have noticed yet.
        until(lambda: not psutil.pid_exists(again.machines[0]["pid"]))
    else:
        assert [each.id for each in registry.rows()] == [again.id]
        # Whether it knows by then that it was lost, or only that there is another.
        assert re.match(
            r"cluster c is lost: .* is gone\.|c was started again elsewhere", cell.stdout
        )
        left = "x in globals()" if "restart" in line else "x"
        assert second.succeed(f"%%sky\nprint({left})").stdout


def test_what_an_ended_kernel_was_still_owed_is_said(
    opened: Callable[..., LiveNotebook], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    notebook.succeed(
        "%sky up --nodes 2 --plugin none\n"
        "first = get_ipython().run_cell_magic('sky', '--background --out loss --gather n', "
        "'loss = 0.5; n = 1')\n"
        "while not first.done: pass"
    )
    notebook.succeed("%%sky --background --out kept\nkept = 2")
    notebook.succeed("%%sky\npass")  # so that the end of the others was seen
    slow = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nlast = 3"
    notebook.succeed(f"%%sky --background --out last\n{slow}")
    notebook.succeed("%%sky --background --out kept\nkept = 4\nprint('waited')")
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    wait_for_end_of_run()
    cell = notebook.succeed("%%sky\npass")
    values, other, waited = (line.partition(": ")[2] for line in cell.stderr.splitlines())
    assert values == (
        "the kernel that began `loss = 0.5; n = 1` ended before loss and n came: `%sky pull loss` "
        "and `%sky pull n --ranks all` bring them, as ranks have them now"
    )
    assert "ended before kept came: `%sky pull kept` brings it" in other
    assert waited.startswith("`print('waited')` did not run: ")
    assert "was started by an earlier kernel: `%sky attach` shows" in cell.shown[-1]
    assert "brings last here" in cell.shown[-1]
    notebook.succeed("%sky attach")
    notebook.succeed("%sky pull loss\n%sky pull n --ranks all")
    assert notebook.value("last, loss, n") == (3, 0.5, [1, 1])
    (tmp_path / "task.yaml").write_text(f"setup: until [ -e {go} ]; do sleep 0.01; done\nrun: ls\n")
    go.unlink()
    notebook.succeed(f"%sky launch {tmp_path}/task.yaml --background")
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    go.touch()
    assert "`task` did not run: " in notebook.succeed("%sky attach").stderr
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    assert notebook.succeed("%sky attach").stderr == ""


def test_end_in_the_sidebar_ends_no_other_cluster_of_that_name(
    opened: Callable[..., LiveNotebook],
) -> None:
    first, second = opened("first"), opened("second")
    cell = first.succeed("%%sky --cluster same --nodes 1 --plugin none\npass")
    second.succeed("%sky attach same\n%sky down same")
    second.succeed("%%sky --cluster same --nodes 1 --plugin none\nkept = 1")
    end = {"action": "down", "cluster": cell.snapshot["cluster"]["id"]}
    assert "another of its name was started" in first.fail_action(end)
    assert second.succeed("%%sky --cluster same\nprint(kept)").stdout == "1\n"
    second.succeed("%sky down same")
