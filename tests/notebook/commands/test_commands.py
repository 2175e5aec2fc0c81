"""The commands of ``%sky``, typed into a shell."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster import rank_log
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.cluster.rank_log import LogPart, LogPlace
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError, UsageError
from jupyter_sky.notebook.commands.dispatch import HANDLERS
from jupyter_sky.notebook.options.commands import COMMANDS
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.notebook.conftest import Notebook
from tests.waiting import until

UNTIL = "import os, time\nwhile not os.path.exists({!r}):\n    time.sleep(0.01)\n"


@pytest.fixture
def two(notebook: Notebook) -> Notebook:
    """A notebook whose cluster has two ranks."""
    notebook.run("%sky up --nodes 2")
    return notebook


@pytest.fixture
def stranger() -> Iterator[Cluster]:
    """A cluster that another kernel has started."""
    spec, runtime_env = assemble(ClusterSpec(name=f"other-{uuid.uuid4().hex[:6]}", nodes=2), [])
    cluster = Cluster.start(spec, Local(), runtime_env)
    yield cluster
    if cluster.state.phase != "down":
        cluster.down()


def table(text: str) -> dict[str, list[str]]:
    """Return the words of each line of the table, by the cluster's name."""
    rows = (line.lstrip("* ").split() for line in text.splitlines()[1:])
    return {row[0]: row[1:] for row in rows if row[0] != "rank"}


def test_each_command_has_a_handler() -> None:
    assert list(HANDLERS) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(notebook: Notebook, command: str) -> None:
    said = notebook.run(f"%sky {command} -h")
    assert said.startswith(f"usage: %sky {command}")
    assert COMMANDS[command][0][1:] in said


@pytest.mark.parametrize("command", ["logs", "push x", "pull x", "interrupt", "restart"])
def test_what_needs_a_cluster_says_how_to_have_one(notebook: Notebook, command: str) -> None:
    with pytest.raises(UsageError, match="`%%sky --nodes 4` above a cell starts one"):
        notebook.run("x = 1")
        notebook.run(f"%sky {command}")


# %sky status


def test_status_without_clusters(notebook: Notebook) -> None:
    assert (
        notebook.run("%sky status")
        == "No cluster is running: `%%sky --nodes 4` above a cell starts one.\n"
    )


def test_status_shows_all_clusters_and_the_ranks_of_the_current(
    two: Notebook, stranger: Cluster
) -> None:
    text = two.run("%sky status")
    mine = next(line for line in text.splitlines() if line.startswith("*"))
    assert mine.split()[2:7] == ["local", "2", "×", "1", "idle"]
    assert table(text)[stranger.name][:5] == ["local", "2", "×", "1", "idle"]
    assert text.splitlines()[-2:] == [
        "   rank 0  node 0  CPU  idle",
        "   rank 1  node 1  CPU  idle",
    ]


def test_status_marks_the_cluster_that_cells_mean(two: Notebook, stranger: Cluster) -> None:
    two.run(f"%sky attach {stranger.name}")
    marked = [line for line in two.run("%sky status").splitlines() if line.startswith("*")]
    assert [line.split()[1] for line in marked] == [stranger.name]


def test_status_shows_what_runs(two: Notebook, stranger: Cluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    strange = stranger.run(Task((1,), code=UNTIL.format(str(end))))
    strange.begin()
    until(lambda: any(rank.run for rank in stranger.state.ranks))
    two.namespace["end"] = str(end)
    two.run("%%sky --background\nimport pathlib\nwhile not pathlib.Path(end).exists(): pass")
    try:
        mine = r"^\* .* running .*exists\(\): pass, ranks 0-1, for [\d.]+ (s|min)"
        text = until(lambda: _matching(mine, two.run("%sky status")))
        two.run("%%sky --background\npass")
        text = until(lambda: _matching(f"{mine}; 1 run waiting$", two.run("%sky status")))
        listed = {each["name"]: each for each in json.loads(two.run("%sky status --json"))}
        assert listed.pop(stranger.name)["waiting"] == 0
        [own] = listed.values()
        assert (own["state"], own["waiting"]) == ("running", 1)
        assert table(text)[stranger.name][4] == "running"
        assert table(text)[stranger.name][-2:] == ["rank", "1"]
    finally:
        end.touch()
        strange.follow()


def test_status_shows_what_another_notebook_runs_on_a_cluster_of_this_one(
    notebook: Notebook, stranger: Cluster, tmp_path: Path
) -> None:
    notebook.run(f"%%sky --cluster {stranger.name}\npass")
    end = tmp_path / "end"
    theirs = stranger.run(Task((1,), code=UNTIL.format(str(end)), title="their run"))
    theirs.begin()
    try:
        shown = r"^\* .* running .* their run, rank 1, for [\d.]+ (s|ms|min)$"
        until(lambda: _matching(shown, notebook.run("%sky status")))
    finally:
        end.touch()
        theirs.follow()


def test_status_of_what_is_not_there(notebook: Notebook, stranger: Cluster) -> None:
    [killed, *_] = registry.rows()[0].machines
    os.kill(killed["pid"], signal.SIGKILL)
    registry.record("00000001", "coming", "local", {"nodes": 3, "procs_per_node": 2})
    registry.record("00000002", "abroad", "local", {"nodes": 1, "procs_per_node": None})
    machine = {"nodes": [{"ranks": [0, 1]}], "computer": "another"}
    registry.record_machines("00000002", [machine])
    registry.record("00000003", "novel", "moon", {"nodes": 1, "procs_per_node": None})
    registry.record("00000004", "keeping", "local", {"nodes": 1, "procs_per_node": None})
    registry.record_machines("00000004", [killed])
    row_updates.record_line("00000004", "--volume s3://photos/data:~/data")
    try:
        shown = table(notebook.run("%sky status"))
        with pytest.raises(UsageError) as refused:
            notebook.run("%sky attach nowhere")
    finally:
        for number in range(1, 5):
            registry.remove(f"0000000{number}")
    assert shown["coming"][:5] == ["local", "3", "×", "2", "starting"]
    assert shown["abroad"][:5] == ["local", "1", "×", "2", "elsewhere"]
    assert shown["novel"][:5] == ["moon", "1", "×", "1", "unknown"]
    assert shown[stranger.name][4:] == ["gone", "`%sky", "gc`", "removes", "what", "is", "left"]
    assert " ".join(shown["keeping"][5:]).startswith("`%sky down keeping` writes back what nodes")
    listed = "there are coming, abroad and novel."  # nobody can attach to one that is gone
    assert str(refused.value) == f"there is no cluster nowhere to attach: {listed}"


def _matching(pattern: str, text: str) -> str | None:
    return text if re.search(pattern, text, re.MULTILINE) else None


# %sky logs


def test_logs_show_what_any_rank_wrote(two: Notebook) -> None:
    two.run("%%sky\nimport os\nprint('I am', os.environ['SKYPILOT_NODE_RANK'])\nprint('é')")
    assert two.run("%sky logs") == "I am 0\né\n"
    assert two.run("%sky logs 1") == "I am 1\né\n"
    assert two.run("%sky logs 1 --tail 1") == "é\n"
    two.run("%%sky\nprint('no end', end='')")
    two.run("%%sky\nprint('next')")
    assert two.run("%sky logs") == "I am 0\né\nno end\nnext\n"
    assert two.run("%sky logs --tail 1") == "next\n"
    with pytest.raises(UsageError, match=r"there is no rank 7, \S+ has ranks 0-1\."):
        two.run("%sky logs 7")
    with pytest.raises(UsageError, match="writes the log of one rank"):
        two.run("%sky logs all --save logs.txt")


def test_logs_of_several_ranks_are_merged(two: Notebook) -> None:
    two.run(
        "%%sky\n# greet\nimport os, sys\nprint('I am', os.environ['SKYPILOT_NODE_RANK'])\n"
        "print('an error', file=sys.stderr)"
    )
    lines = two.run("%sky logs all --tail 2").splitlines()
    assert sorted(lines) == ["0 │ I am 0", "0 │ an error", "1 │ I am 1", "1 │ an error"]
    entries = [json.loads(line) for line in two.run("%sky logs 1 --tail 2 --json").splitlines()]
    began, printed, failed = entries
    assert (began["rank"], began["title"]) == (1, "greet")
    assert (printed["stream"], printed["text"]) == ("stdout", "I am 1\n")
    assert (failed["stream"], failed["text"]) == ("stderr", "an error\n")
    assert began["time"] <= printed["time"] <= failed["time"]


def test_a_long_log_is_shown_from_its_end(two: Notebook) -> None:
    two.run("%%sky\nfor number in range(200_000): print(number)")
    first, *lines = two.run("%sky logs 1").splitlines()
    assert lines == [str(number) for number in range(199_000, 200_000)]
    left_out = sum(len(str(number)) + 1 for number in range(199_000))
    instead = "`%sky logs 1 --save FILE` saves the whole log"
    assert first == f"[{left_out:,} bytes above are not shown: {instead}]"
    assert two.run("%sky logs 1 --tail 2") == "199998\n199999\n"


class Interrupting(StringIO):
    """A stream on which Ctrl-C is pressed as soon as it shows some texts."""

    def __init__(self, *texts: str, before: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self._texts = texts
        self._before = before

    def write(self, text: str) -> int:
        written = super().write(text)
        if all(text in self.getvalue() for text in self._texts):
            self._texts = ("\0",)
            self._before()
            signal.raise_signal(signal.SIGINT)
        return written


def test_following_a_log_ends_with_ctrl_c_and_the_run_goes_on(
    two: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, half, second = (tmp_path / each for each in ("first", "half", "second"))
    two.namespace.update(first=str(first), half=str(half), second=str(second))
    two.run(
        "%%sky --background --out done\n"
        "import os, time\n"
        "def wait_for(path):\n"
        "    while not os.path.exists(path): time.sleep(0.01)\n"
        "print('begun', flush=True); wait_for(first)\n"
        "if os.environ['SKYPILOT_NODE_RANK'] == '1':\n"
        "    print('half', end='', flush=True)\n"
        "else:\n"
        "    wait_for(half); print('there', flush=True)\n"
        "wait_for(second)\n"
        "done = 'really'"
    )
    run = two.namespace["_"]
    stream = Interrupting("half", before=half.touch)
    going_on = Interrupting("begun\n", before=first.touch)
    for each in (going_on, stream):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", each)
            two.shell.run_line_magic("sky", "logs 1 --follow")
    assert going_on.getvalue().startswith("begun\n")
    assert stream.getvalue() == "begun\nhalf"
    # What a rank has printed so far is read at once.
    labelled = Interrupting("0 │ there\n", "1 │ begun\n")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", labelled)
        two.shell.run_line_magic("sky", "logs all --follow")
    assert "1 │ half\n" in labelled.getvalue()  # a line that is not finished is shown, too
    assert not run.done
    second.touch()
    assert run.result(60) == {"done": "really"}


def test_a_log_whose_rest_cannot_be_read_is_not_asked_for_again(two: Notebook) -> None:
    parts = [LogPart(0, b"begun\n", 0, 9, [], []), LogPart(0, b"", 6, 9, [], [])]
    with mock.patch.object(rank_log, "read", side_effect=parts):
        assert two.run("%sky logs 0") == "begun\n"


def test_what_was_read_of_other_logs_is_shown_before_the_trouble_with_one(
    two: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = ClusterLost("cluster two is lost.", nodes=["node 1"])

    async def read(_: object, rank: int, place: LogPlace, follows: bool = False) -> LogPart:
        if rank == 1 and place.offset:
            raise lost
        return LogPart(rank, b"more\nlast", place.offset, 18, [], [])

    for how in ("", "--follow"):
        with mock.patch.object(rank_log, "read", read), pytest.raises(ClusterLost) as raised:
            two.run(f"%sky logs all {how}")
        assert raised.value is lost
        shown = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
        assert shown == ["0 │ more", "1 │ more", "0 │ lastmore", "0 │ last", "1 │ last"]


def test_all_ranks_without_a_connection_are_named_once(two: Notebook) -> None:
    asked = dict.fromkeys((0, 1), 0)

    async def read(_: object, rank: int, place: LogPlace, follows: bool = False) -> LogPart:
        asked[rank] += 1
        if asked[rank] < 3:
            raise NoConnection("there is no connection to node 0.")
        if asked[rank] > 3:
            raise ClusterLost("cluster two was ended from elsewhere.")
        return LogPart(rank, b"late\n", 0, 5, [], [])

    with mock.patch.object(rank_log, "read", read):
        assert two.run("%sky logs all --follow") == "0 │ late\n1 │ late\n"
    assert two.stderr.splitlines() == [
        "[there is no connection to ranks 0-1: what is printed there comes later]",
        "[connected again: ranks 0-1]",
        "[cluster two was ended from elsewhere]",
    ]


def test_an_end_that_was_not_read_is_not_passed_over(two: Notebook) -> None:
    ended = ClusterLost("cluster two was ended from elsewhere.")
    with mock.patch.object(
        rank_log, "read", side_effect=[LogPart(0, b"more\n", 0, 5000, [], []), ended]
    ):
        assert two.run("%sky logs 0 --follow") == "more\n"
    assert two.stderr.splitlines() == [
        "[cluster two was ended from elsewhere]",
        "[the last 5 kB of the log of rank 0 were not read in time]",
    ]


def test_a_log_that_grows_faster_than_it_is_read_has_an_end(two: Notebook, tmp_path: Path) -> None:
    async def read(_: object, rank: int, place: LogPlace, follows: bool = False) -> LogPart:
        return LogPart(rank, b"more\n", place.offset, place.offset + 10, [], [])

    with mock.patch.object(rank_log, "read", read):
        assert two.run("%sky logs 0") == "more\nmore\n"
        file = tmp_path / "log"
        assert f"to {file}: 10 bytes" in two.run(f"%sky logs 0 --save {file}")
        assert file.read_text() == "more\nmore\n"
    lost = mock.patch.object(rank_log, "read", side_effect=SkyError("node 1 does not answer."))
    with lost, pytest.raises(SkyError, match="node 1 does not answer"):
        two.run(f"%sky logs 1 --save {file}")
    assert file.read_text() == "more\nmore\n"


# Variables, ranks, clusters


def test_push_and_pull(two: Notebook) -> None:
    two.namespace["data"] = [1, 2]
    two.run("%sky push data")
    two.run("%%sky --in none\nimport os\nmine = [*data, int(os.environ['SKYPILOT_NODE_RANK'])]")
    two.run("%sky pull mine")
    assert two.namespace["mine"] == [1, 2, 0]
    two.run("%sky pull mine --ranks all")
    assert two.namespace["mine"] == [[1, 2, 0], [1, 2, 1]]
    with pytest.raises(UsageError, match="%sky push nothing: the notebook has no nothing"):
        two.run("%sky push nothing")
    with pytest.raises(UsageError, match="--ranks: there is no rank 5"):
        two.run("%sky pull mine --ranks 5")
    with pytest.raises(UsageError, match="%sky debug: there is no rank 9"):
        two.run("%sky debug --rank 9")


def test_variables_of_another_cluster(two: Notebook) -> None:
    two.run("%sky up --nodes 1 --cluster current")
    [name] = {row.name for row in registry.rows()} - {"current"}
    missing = f"no rank has data: `%sky push data --cluster {name}` sends the notebook's\n"
    two.namespace["data"] = [1, 2]
    two.run(f"%sky vars data --cluster {name}")
    assert two.stderr == missing
    two.run(f"%sky push data --cluster {name}")
    two.run("%sky vars data")
    assert two.stderr == "no rank has data: `%sky push data` sends the notebook's\n"
    two.namespace["data"] = None
    two.run(f"%sky pull data --ranks all --cluster {name}")
    assert two.namespace["data"] == [[1, 2], [1, 2]]


def test_restart_empties_namespaces(two: Notebook) -> None:
    two.run("%%sky\nx = 1")
    assert "ranks 0-1 restarted with empty namespaces" in two.run("%sky restart")
    with pytest.raises(NameError):
        two.run("%%sky\nprint(x)")


def test_up_says_what_is_up(two: Notebook) -> None:
    assert two.run("%sky up").endswith(": 2 local nodes, 2 ranks on CPU, up already\n")


def test_interrupt_stops_what_runs(two: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    assert two.run("%sky interrupt").endswith("nothing is running\n")
    two.run("%%sky --background\nprint('begun', flush=True)\nimport time\ntime.sleep(600)")
    run = two.namespace["_"]
    until(lambda: "begun" in two.run("%sky logs"))
    two.namespace["x"] = 1
    for command in ("push", "pull"):
        waiting = Interrupting("waiting until the run that goes on is over; Stop ends the waiting")
        with monkeypatch.context() as patch, pytest.raises(Interrupted, match="before it began"):
            patch.setattr(sys, "stderr", waiting)
            two.shell.run_line_magic("sky", f"{command} x")
    assert two.run("%sky interrupt").endswith("stopping\n")
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run.result(60)


def test_attach_and_down_reach_clusters_of_other_kernels(
    notebook: Notebook, stranger: Cluster
) -> None:
    advice = rf"there is no cluster of this notebook.*: .*`%sky attach {stranger.name}` makes"
    for command in ("attach", "interrupt", "panel", "down"):
        with pytest.raises(UsageError, match=advice):
            notebook.run(f"%sky {command}")
    with pytest.raises(UsageError, match=rf"{advice}.*To start one, .*`--nodes 4`"):
        notebook.run("%%sky\nprint('here')")
    said = notebook.run(f"%sky attach {stranger.name}")
    # A line before says what it is, as it is connected.
    assert said == f"{stranger.name}: cells without --cluster use it now\n"
    again = notebook.run(f"%sky attach {stranger.name}")
    assert re.search(r": 2 local nodes, .*; cells without --cluster use it now$", again)
    assert notebook.run("%%sky\nprint('here')") == "here\n"
    assert notebook.run(f"%sky down {stranger.name}") == (
        f"{stranger.name}: ended; nothing is left running\n"
    )
    assert registry.find(stranger.name) is None
    with pytest.raises(UsageError, match="there is no cluster nowhere to attach"):
        notebook.run("%sky attach nowhere")
    with pytest.raises(UsageError, match="there is no cluster nowhere to end"):
        notebook.run("%sky down nowhere")
    # One that has no machines yet, or never came to have some.
    registry.record("0123abcd", "soon", "local", registry.describe(ClusterSpec("soon"), []))
    for command in ("logs --cluster soon", "scale 2 --cluster soon", "attach soon"):
        with pytest.raises(UsageError, match="cluster soon is being started by another notebook"):
            notebook.run(f"%sky {command}")
    registry.clear_starter("0123abcd")
    with pytest.raises(UsageError, match="cluster soon did not come up: `%sky gc` removes what"):
        notebook.run("%sky attach soon")
    registry.remove("0123abcd")
