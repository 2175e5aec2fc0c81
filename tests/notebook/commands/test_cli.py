"""``jupyter sky`` in a terminal, beside notebooks whose clusters it is about."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory import registry
from tests.node_processes import processes_of_node
from tests.notebook.kernels import PATIENCE, LiveNotebook
from tests.waiting import until

Open = Callable[..., LiveNotebook]


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "jupyter_sky.notebook.session":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from jupyter_sky.__main__ import main
sys.exit(main())
"""


@dataclass
class Said:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def sky(*words: str, **env: str) -> Said:
    """Type ``jupyter sky`` and some words, and wait for the end."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_sky", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **env},
    )
    assert "Traceback" not in done.stderr or words[0] == "attach"
    return Said(done.returncode, done.stdout, done.stderr)


class Typed:
    """A command that goes on, whose lines are read as they come."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jupyter_sky", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, text: str) -> list[str]:
        """Read lines up to one with a text."""
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(f"it ended before: {lines}, {self.end()}")

    def stop(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Said:
        """Read the rest."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return Said(self.process.returncode, out, err)


@pytest.fixture
def typed() -> Iterator[Callable[..., Typed]]:
    """Type commands that go on; they end with the test."""
    made: list[Typed] = []

    def type_it(*words: str) -> Typed:
        made.append(Typed(*words))
        return made[-1]

    yield type_it
    for each in made:
        each.process.kill()
        each.process.communicate()


COUNTING = (
    "%%sky --nodes 2 --plugin none --out last\nimport os, time\n"
    "for n in range({}):\n    print(n, flush=True)\n"
    "    while n == 20 and not os.path.exists({!r}): time.sleep(0.01)\nlast = n"
)


def kill(notebook: LiveNotebook) -> None:
    """Kill the kernel of a notebook, and wait until it is gone."""
    process = psutil.Process(notebook.pid)
    process.kill()
    process.wait(PATIENCE)


# Words


def test_without_words_it_says_what_it_can_do() -> None:
    said = sky()
    assert said.status == 0
    assert said.out.startswith("usage: jupyter sky COMMAND [options]\n")
    assert "status" in said.out and "push" not in said.out
    assert sky("--help").out == sky("help").out == said.out
    assert sky("--version").out == f"{__version__}\n"
    assert sky("logs", "-h").out.startswith("usage: jupyter sky logs [RANKS] [options]\n")
    assert sky("put", "-h").out.startswith("usage: jupyter sky put FILE [options]\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stauts"], "has no command stauts: did you mean `jupyter sky status`?"),
        (["fly"], "jupyter sky has no command fly: `jupyter sky -h` lists them."),
        (["push", "x"], "`%sky push` works in a notebook only: type it in a cell."),
        (["logs", "--tial", "3"], "--tial is not an option of jupyter sky logs: did you mean"),
        (["clusters"], "has no command clusters: did you mean `jupyter sky status`?"),
        (["cancel", "1"], "has no command cancel: did you mean `jupyter sky interrupt`?"),
        (
            ["launch", "a.yaml", "-d"],
            "-d is not an option of jupyter sky launch: did you mean `--b",
        ),
        (["down"], "is running: `jupyter sky up --cluster NAME --nodes 4` starts one."),
        (["torchrun", "a.py"], "no cluster is running: add `--cluster NAME` to start one."),
        (["logs", "--cluster", "gone"], "there is no cluster gone: none is running."),
        (["gc", "train"], "the id train: `jupyter sky down NAME` ends a cluster by its name."),
        (
            ["up", "--nodes", "2"],
            "a cluster that is started in a terminal needs a name: add `--cluster NAME`.",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(words: list[str], sentence: str) -> None:
    said = sky(*words)
    assert (said.status, said.out) == (2, "")
    assert re.match(r"jupyter sky[ :]", said.err) and said.err.count("\n") == 1
    assert said.err.count("jupyter sky") - sentence.count("jupyter sky") <= 1
    assert sentence in said.err


def test_a_folder_that_is_gone_and_an_output_that_is_full_or_closed(tmp_path: Path) -> None:
    command = f"rmdir {tmp_path}; exec {sys.executable} -P -m jupyter_sky status"
    in_shell = partial(subprocess.run, shell=True, stderr=subprocess.PIPE, text=True)
    gone = in_shell(command, cwd=tmp_path)
    sentence = "jupyter sky: this folder no longer exists: change to one that does.\n"
    assert (gone.returncode, gone.stderr) == (2, sentence)
    full = in_shell(f"{sys.executable} -P -m jupyter_sky status > /dev/full")
    sentence = "jupyter sky: the output cannot be written: No space left on device.\n"
    assert (full.returncode, full.stderr) == (1, sentence)
    closed = in_shell(f"{sys.executable} -P -m jupyter_sky status >&-")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_it_is_a_command_of_jupyter() -> None:
    if not (command := shutil.which("jupyter-sky", path=str(Path(sys.executable).parent))):
        pytest.skip("jupyter-sky is not installed in this environment, but only its folder used")
    assert subprocess.check_output([command, "--version"], text=True) == f"{__version__}\n"


def test_help_that_nobody_reads_to_its_end_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)  # as `head` has done
    command = [sys.executable, "-P", "-m", "jupyter_sky", "logs", "-h"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_is_quiet_while_a_command_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_settings_are_those_of_notebooks(tmp_path: Path) -> None:
    profile = tmp_path / "profile_default"
    profile.mkdir()
    (profile / "ipython_config.py").write_text("c.Sky.nodes = 'many'\n")
    said = sky("status", IPYTHONDIR=str(tmp_path))
    assert "Sky.nodes takes a whole number of at least 1" in said.err
    assert said.status == 2


# Clusters of notebooks


def test_the_cluster_of_a_notebook_that_is_busy(
    opened: Open, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    cell = notebook.start(COUNTING.format(40, str(go)))
    notebook.until(cell, lambda cell: "20\n" in cell.stdout)
    [row] = registry.rows()

    assert "nodes ? ranks" in sky("status", PYTHONIOENCODING="ascii").out
    closed = f"{sys.executable} -P -m jupyter_sky shell <&-"
    said = subprocess.run(closed, shell=True, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2 and "needs a terminal, and this is none" in said.stderr
    [listed] = json.loads(sky("status", "--json").out)
    assert (listed["name"], listed["state"], listed["busy"]) == (row.name, "running", [0, 1])
    assert listed["run"] == "for n in range(40)"
    assert re.search(r"for n in range\(40\), ranks 0-1, for [\d.]+ (s|min)", sky("status").out)
    assert row.name in sky("status", row.name).out
    said = sky("status", "nobody", "--json")
    known = f"there is no cluster nobody: there is {row.name}."
    assert said == Said(2, "", f"jupyter sky: {known}\n")
    until(lambda: sky("logs", "1", "--tail", "2").out == "19\n20\n")  # it may be behind the head
    wrong = f"logs: there is no rank 7, {row.name} has ranks 0-1."
    assert sky("logs", "7").err == f"jupyter sky: {wrong}\n"
    assert sky("get", "x", "--ranks", "7").err == f"jupyter sky get: {wrong.partition(': ')[2]}\n"

    log, attached = typed("logs", "1", "--follow"), typed("attach")
    log.until("20\n")
    attached.until("20\n")
    attached.stop()
    left = attached.end()
    assert left.status == 0
    # With the name: of several clusters, another might be meant.
    assert left.out.endswith(
        f"{row.name}: the run continues; `jupyter sky attach {row.name}` shows it again, "
        f"`jupyter sky interrupt --cluster {row.name}` stops it\n"
    )

    again = typed("attach", row.name)
    first, *_ = again.until("20\n")
    assert first.startswith(f"{row.name}: `for n in range(40)` on ranks 0-1; Ctrl-C leaves it")
    go.touch()
    log.until("39\n")
    log.stop()
    assert log.end() == Said(0, "", "")
    assert again.end() == Said(0, "".join(f"{n}\n" for n in range(21, 40)), "")
    assert notebook.finish(cell).error is None
    assert notebook.value("last") == 39  # who looked on has taken nothing away


def test_interrupt_and_restart_and_down(opened: Open, typed: Callable[..., Typed]) -> None:
    notebook = opened()
    cell = notebook.start(
        "%%sky --nodes 2 --plugin none\nprint('on', flush=True)\nimport time\ntime.sleep(600)"
    )
    notebook.until(cell, lambda cell: "on" in cell.stdout)
    [row] = registry.rows()
    both_sleep = (
        rf"{row.name}: no rank waits for another: ranks 0-1 are at `time.sleep\(600\)` "
        r"\(cell \[\d+\], line 4\)\.\n   ranks 0-1\n"
        r"      cell \[\d+\], line 4: time.sleep\(600\)\n"
    )
    until(lambda: re.fullmatch(both_sleep, sky("where").out))
    sleeps = r"(.*\n)+ +\d+ %  cell \[\d+\], line 4: time.sleep\(600\)\n"
    until(lambda: re.match(sleeps, sky("profile", "0.5s").out))
    # Whether it waits long enough to see the end is a matter of time.
    assert sky("interrupt").out in (f"{row.name}: stopped\n", f"{row.name}: stopping\n")
    assert "KeyboardInterrupt" in notebook.finish(cell).traceback
    assert sky("interrupt").out == f"{row.name}: nothing is running\n"
    assert sky("where").out == f"{row.name}: nothing is running.\n"
    assert "scale it in that notebook" in sky("scale", "3").err
    notebook.succeed("%%sky\nx = 1")
    assert re.search(r"\nx +int .*all the same\n", sky("vars").out)
    assert sky("same", "x").out == "x: the same on ranks 0-1 (1 part, 28 B)\n"
    assert sky("same", "nobody") == Said(1, "nobody: no rank has this name\n", "")
    assert sky("vars", "nobody").err.endswith("no rank has nobody\n")
    said = sky("restart", "1", "--cluster", row.name)
    assert said.out == f"{row.name}: rank 1 restarted with an empty namespace\n"
    notebook.succeed("%%sky --ranks 0\nassert x == 1")
    assert "name 'x' is not defined" in notebook.run("%%sky --ranks 1\nx").traceback
    cell = notebook.start("%%sky\nprint('on', flush=True)\nimport time\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "on" in cell.stdout)
    said = sky("restart")
    assert said.out == f"{row.name}: ranks 0-1 restarted with empty namespaces\n"
    assert "is lost" in notebook.finish(cell).traceback
    notebook.succeed("%%sky\nprint('last')")
    following = typed("logs", "--follow")
    following.until("last")
    down = sky("down", row.name)
    assert down.out == f"{row.name}: ended; nothing is left running\n"
    assert registry.rows() == []
    end = following.end()
    # As with `kubectl logs -f`: that is all there is.
    assert end == Said(0, "", f"[cluster {row.name} was ended from elsewhere]\n")


ENDING = (
    "%%sky --nodes 2 --plugin none\nimport time\ntry:\n"
    "    print('begun', flush=True); time.sleep(600)\n"
    "finally:\n"
    "    print(f'{0:0100}\\n' * 10_000, end='')\n    print('saved', flush=True)"
)
"""A cell whose ranks print a megabyte when they are told to end."""


def test_who_follows_logs_has_them_whole_when_the_cluster_ends(
    opened: Open, typed: Callable[..., Typed]
) -> None:
    notebook = opened()
    cell = notebook.start(ENDING)
    notebook.until(cell, lambda cell: "begun" in cell.stdout)
    [row] = registry.rows()
    one, every, hanging = (typed("logs", ranks, "--follow") for ranks in ("1", "all", "0"))
    for each in (one, every, hanging):
        each.until("begun")
    hanging.process.send_signal(signal.SIGSTOP)  # it is waited for, but not for long
    with ThreadPoolExecutor() as pool:  # who is not read from cannot read on, either
        ends = [pool.submit(each.end) for each in (one, every)]
        down = sky("down", row.name)
        of_one, of_every = (end.result() for end in ends)
    assert down == Said(0, f"{row.name}: ended; nothing is left running\n", "")
    lines, note = [f"{0:0100}"] * 10_000, f"[cluster {row.name} was ended from elsewhere]\n"
    assert of_one == Said(0, "\n".join([*lines, "saved\n"]), note)
    assert of_every.out.count(f"│ {lines[0]}\n") == 2 * len(lines)
    assert all(f"{rank} │ saved\n" in of_every.out for rank in (0, 1))
    hanging.process.send_signal(signal.SIGCONT)
    assert hanging.end().err == note


def test_a_log_ends_with_its_rank_and_the_others_go_on(
    opened: Open, typed: Callable[..., Typed]
) -> None:
    notebook = opened()
    notebook.succeed("%%sky --nodes 2 --plugin none\nprint('begun')")
    every, gone = (typed("logs", ranks, "--follow") for ranks in ("all", "1"))
    every.until("0 │ begun")
    gone.until("begun")
    notebook.succeed("%sky scale 1")
    note = "[rank 1 is gone: the cluster was scaled]\n"
    assert gone.end() == Said(0, "", note)
    notebook.succeed("%%sky\nprint('more')")
    every.until("0 │ more")
    every.stop()
    assert every.end() == Said(0, "", note)


def test_an_error_of_the_run_that_is_followed_is_shown(
    opened: Open, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    code = COUNTING.format(40, str(go)) + "\nraise ValueError('too late')"
    cell = notebook.start(code)
    notebook.until(cell, lambda cell: "20\n" in cell.stdout)
    attached = typed("attach")
    attached.until("20\n")
    go.touch()
    end = attached.end()
    assert end.status == 1
    assert "ValueError: too late" in end.err
    assert "ValueError" in notebook.finish(cell).traceback


def test_looking_on_takes_nothing_from_a_notebook_that_was_killed(
    opened: Open, typed: Callable[..., Typed], tmp_path: Path
) -> None:
    notebook = opened()
    go = tmp_path / "go"
    cell = notebook.start(COUNTING.format(40, str(go)))
    notebook.until(cell, lambda cell: "20\n" in cell.stdout)
    attached = typed("attach")
    attached.until("20\n")
    kill(notebook)
    go.touch()
    assert attached.end().status == 0
    [row] = registry.rows()
    assert sky("attach").out.endswith(
        f"nothing is running; `jupyter sky logs --cluster {row.name}` shows earlier output\n"
    )
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    lines = notebook.succeed("%sky attach").stdout.splitlines()
    assert lines[2:] == [str(n) for n in range(40)]
    assert notebook.value("last") == 39


def test_several_clusters_are_told_apart_by_name(opened: Open) -> None:
    notebook = opened()
    notebook.succeed("%sky up --nodes 1 --plugin none --cluster one")
    notebook.succeed("%sky up --nodes 1 --plugin none --cluster two")
    assert sky("down").err == (
        "jupyter sky: several clusters are running (one, two): name one, as in "
        "`jupyter sky down one`.\n"
    )
    assert "as in `jupyter sky logs --cluster one`." in sky("logs").err
    listed = json.loads(sky("status", "--json").out)
    assert [each["name"] for each in listed] == ["one", "two"]
    assert sky("torchrun", "--cluster", "three", "-m", "train").err == (
        "jupyter sky: there is no cluster three: there are one and two. To start one, give the "
        "number of nodes, as in `--nodes 4`.\n"
    )
    assert sky("down", "one").status == 0
    assert [row.name for row in registry.rows()] == ["two"]
    notebook.succeed("%sky down two")


def kill_agent() -> None:
    [machine] = registry.rows()[0].machines
    agent = psutil.Process(machine["pid"])
    agent.kill()
    agent.wait(PATIENCE)


def test_it_says_when_a_cluster_ends_that_it_starts(tmp_path: Path) -> None:
    profile = tmp_path / "profile_default"
    profile.mkdir()
    (profile / "ipython_config.py").write_text("c.Sky.grace = '8h'\n")
    words = ("up", "--nodes", "1", "--plugin", "none", "--cluster", f"said-{os.getpid()}")
    said, again = (sky(*words, IPYTHONDIR=str(tmp_path)) for _ in range(2))
    # Nobody was connected to it when it was lost.
    kill_agent()
    anew = sky(*words, IPYTHONDIR=str(tmp_path))
    assert "up already" not in anew.err
    assert (
        f"{words[-1]}: a cluster of local nodes ends 8 h 00 min after the last notebook" in anew.err
    )
    kill_agent()
    lost = sky("restart", "--cluster", words[-1])
    assert lost.err.startswith(f"cluster {words[-1]} is gone, with what its ranks had: ")
    assert lost.status == 2 and registry.rows() == []
    assert (
        f"{words[-1]}: a cluster of local nodes ends 8 h 00 min after the last notebook" in said.err
    )
    assert again.err == f"{words[-1]}: 1 local node, 1 rank on CPU, up already\n"
    assert said.out == again.out == ""  # standard output has what was asked for, and nothing else


# What killed kernels leave


def test_gc_recovers_what_a_kernel_left_that_was_killed(opened: Open, alone: None) -> None:
    notebook = opened()
    notebook.succeed("%%sky --nodes 2 --plugin none --cluster killed\nx = 1")
    [machine] = registry.rows()[0].machines
    agent = psutil.Process(machine["pid"])
    _, *others = processes_of_node(agent)
    for process in others:
        process.suspend()  # else they end with their agent
    kill(notebook)
    agent.kill()
    psutil.wait_procs([agent], timeout=PATIENCE)
    said = sky("doctor")
    assert said.status == 1
    assert "`jupyter sky gc` removes it" in said.out
    said = sky("gc")
    assert said.status == 0
    # Tests of other processes may have left something too.
    assert re.search("^removed killed: its entry in the registry, ", said.out, re.MULTILINE)
    psutil.wait_procs(others, timeout=PATIENCE)
    assert registry.rows() == []
    assert not Path(machine["folder"]).exists()
    assert "killed" not in sky("gc").out


def test_gc_forgets_a_cluster_whose_kernel_was_killed_while_it_started(
    opened: Open, alone: None
) -> None:
    notebook = opened()
    cell = notebook.start(
        "from jupyter_sky.providers.local import Local\n"
        "import asyncio\n"
        "async def launch(*args):\n"
        "    print('launching', flush=True)\n    await asyncio.sleep(600)\n"
        "Local.launch = launch\n%sky up --nodes 1 --plugin none --cluster early"
    )
    notebook.until(cell, lambda cell: "launching" in cell.stdout)
    assert json.loads(sky("status", "--json").out)[0]["state"] == "starting"
    kill(notebook)
    assert "removed early: its entry in the registry" in sky("gc").out.splitlines()
    assert registry.rows() == []
