"""The strip above a cell's output: one for each run, and it stays as the run ended."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_sky.cluster.snapshot import KeptOutput
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.panel.manager import PanelManager
from tests.notebook.kernels import MIME, Cell, LiveNotebook
from tests.notebook.panel.samples import changed, snapshot
from tests.notebook.panel.test_panel import Tags


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNotebook]:
    """A notebook with a cluster of two nodes, whose strips were seen before."""
    notebook = LiveNotebook(tmp_path_factory.mktemp("strips") / "strips.ipynb")
    try:
        notebook.succeed("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
        first = notebook.succeed("%%sky --nodes 2\nimport os, time")
        assert first.strips[-1][MIME]["open"] is True
        yield notebook
    finally:
        notebook.close()


def states(cell: Cell) -> list[str]:
    return [strip[MIME]["snapshot"]["run"]["state"] for strip in cell.strips]


def test_every_cell_has_one_also_when_it_is_run_again(notebook: LiveNotebook) -> None:
    for _ in range(2):
        cell = notebook.succeed("%%sky\nprint('hello')")
        assert states(cell)[-1] == "ok"
        assert cell.strips[-1][MIME]["open"] is False
        assert cell.snapshot["run"]["shown"] == [0]
        assert cell.snapshot["output"]["text"] == "", "what the cell prints is there already"
        assert cell.strips[-1]["text/plain"].startswith("✓ finished after")


def test_a_terminal_shows_once_how_a_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = changed(snapshot(), run={"state": "ok", "seconds": 2.0})
    screen: Any = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    terminal: Any = SimpleNamespace()  # a shell without a kernel
    cluster: Any = SimpleNamespace(snapshot=lambda *which: shown)
    strip = PanelManager(terminal, Sky()).strip(cluster, "run")
    for _ in range(2):  # as where a run in the background ends, and is asked for its result
        strip.finish()
    assert screen.getvalue().count("finished after 2.0 s") == 1
    strip.goes_on(lambda: shown)  # another attempt
    strip.finish()
    assert screen.getvalue().count("finished after 2.0 s") == 2
    before = screen.getvalue()
    strip.goes_on(lambda: changed(snapshot(), run={"state": "running", "seconds": 9.0}))
    strip.finish()  # after a Stop that some rank does not hear: what is raised says so
    assert screen.getvalue() == before


def test_clusters_end_while_runs_go_on_in_threads() -> None:
    usual = sys.getswitchinterval()
    terminal: Any = SimpleNamespace()  # a shell without a kernel
    clusters: Any = [SimpleNamespace(id=each, snapshot=lambda *which: snapshot()) for each in "ab"]
    panels = PanelManager(terminal, Sky())
    strip = panels.strip(clusters[0], "first")

    def go_on() -> None:  # as further attempts do
        for number in range(20_000):
            panels.go_on(strip, clusters[0], str(number))

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(go_on)
            while not going.done():
                panels.settle(clusters[1])
            going.result()
    finally:
        sys.setswitchinterval(usual)


def test_runs_in_threads_keep_their_output() -> None:
    usual = sys.getswitchinterval()
    terminal: Any = SimpleNamespace()
    panels = PanelManager(terminal, Sky())
    kept = KeptOutput("", is_cut=False)

    def keep(thread: int) -> None:
        for number in range(20_000):
            panels.keep_output(f"{thread} {number}", lambda: kept)

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(keep, range(4)))
    finally:
        sys.setswitchinterval(usual)


def test_it_comes_before_what_the_cell_prints(notebook: LiveNotebook, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    cell = notebook.start(
        f"%%sky\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.01)\nprint('done')"
    )
    notebook.until(cell, lambda cell: cell.strips)
    assert states(cell) == ["running"] and cell.stdout == ""
    seen.touch()
    assert notebook.finish(cell).stdout == "done\n"
    assert states(cell)[-1] == "ok"


def test_it_stands_behind_what_the_notebook_has_printed_before(notebook: LiveNotebook) -> None:
    once = "print('out'); sys.stderr.write('err')\nget_ipython().run_cell_magic('sky', '', 'pass')"
    cell = notebook.succeed(
        "import sys\nfor each in range(2):\n    " + once.replace("\n", "\n    ")
    )
    came = [kind for kind in cell.order if kind in ("stream", "strip")]
    # On a busy machine, ipykernel sends what was printed in more than one piece for each stream.
    assert [kind for kind, _ in itertools.groupby(came)] == ["stream", "strip"] * 2
    assert (cell.stdout, cell.stderr) == ("out\nout\n", "errerr")
    # And nothing of ours stays with ipykernel.
    assert notebook.value("'_flush_streams' in vars(get_ipython().display_pub)") is False


def test_a_later_run_changes_nothing_of_an_earlier_one(notebook: LiveNotebook) -> None:
    before = notebook.succeed("%%sky\nprint('loss 0.3')")
    failed = notebook.run("%%sky\n1 / 0")
    assert states(failed)[-1] == "error"
    assert states(before)[-1] == "ok"
    assert [rank["line"] for rank in before.snapshot["ranks"]] == ["loss 0.3", "loss 0.3"]
    assert failed.snapshot["ranks"][0]["outcome"] == "error"


def test_what_ranks_log_stays_in_it_as_a_picture(notebook: LiveNotebook) -> None:
    cell = notebook.succeed(
        "%%sky\nimport jupyter_sky as sky\nfor step in range(5):\n"
        "    sky.log({'<i>loss': 1 / (1 + step)}, step=step)\nsky.log(nothing=float('nan'))"
    )
    loss, nothing, *_ = cell.snapshot["curves"]
    assert (loss["rank"], loss["values"][:2], nothing["values"]) == (0, [1, 0.5], [None])
    page = cell.strips[-1]["text/html"]
    assert "&lt;i&gt;loss" in page and "<i>" not in page
    assert 'd="M0.0 3.0L50.0 ' in page
    assert "  <i>loss: 0.2 (5 logged)" in cell.strips[-1]["text/plain"]
    assert "  nothing: NaN/∞ (1 logged)" in cell.strips[-1]["text/plain"]
    table = notebook.succeed("table = %sky metrics\nprint(list(table.columns), len(table))")
    assert table.stdout == "['rank', 'step', '<i>loss', 'nothing'] 10\n"
    notebook.succeed("%%sky --background\nsky.log(loss=4)")
    notebook.succeed("logged = _\nlogged.result()\nassert logged.metrics['loss'].max() == 4")


def test_clear_output_leaves_it(notebook: LiveNotebook) -> None:
    cell = notebook.succeed(
        "%%sky\nfrom IPython.display import clear_output\n"
        "for step in range(3):\n    clear_output(wait=True)\n    print('step', step)"
    )
    assert cell.stdout == "step 2\n"
    shown = [kind for kind in cell.order if kind != "comm_msg"]  # what the panel is told
    cleared = max(at for at, kind in enumerate(shown) if kind == "clear_output")
    assert shown[cleared + 1] == "strip"
    assert states(cell)[-1] == "ok"


def test_a_background_run_has_one_with_its_output_below(notebook: LiveNotebook) -> None:
    cell = notebook.succeed("%%sky --background\nprint('in the background')")
    assert cell.snapshot["run"]["background"] is True
    again = notebook.succeed("run = _\nrun.result()\nrun")
    assert states(again)[-1] == "ok"
    assert again.shown == ["in the background"]


def test_that_of_a_background_run_stays_as_it_ended_however_many_come_after_it(
    notebook: LiveNotebook,
) -> None:
    notebook.succeed("%%sky --background\nprint('shown')")
    notebook.succeed(
        "early = _\nkept = get_ipython().run_cell_magic('sky', '--background', 'print(1)')\n"
        "kept.result()\n"
        "for each in range(20):\n    get_ipython().run_cell_magic('sky', '', 'pass')"
    )
    again = notebook.succeed("early.result()\ndisplay(early, kept)")
    assert set(states(again)) == {"ok"}, "of both, shown anew and updated"


FAILS_ONCE = """
import os
if not os.path.exists({once!r}):
    open({once!r}, "w").close()
    os._exit(1)
"""


@pytest.mark.parametrize("line", ["--background", "--background --retry 1"])
def test_a_background_run_that_is_kept_has_one_only_where_it_is_displayed(
    opened: Callable[..., LiveNotebook], tmp_path: Path, line: str
) -> None:
    notebook = opened()
    first = notebook.succeed("%%sky --nodes 1 --plugin none\npass")
    code = FAILS_ONCE.format(once=str(tmp_path / "once")) if "retry" in line else "pass"
    kept = f"run = get_ipython().run_cell_magic('sky', {line!r}, {code!r})\nrun.result()"
    begun = notebook.finish(notebook.start(kept), first)
    other = notebook.finish(notebook.start("print('of the notebook')"), first, begun)
    assert [cell.order.count("strip") for cell in (first, begun, other)] == [1, 0, 0]
    displayed = notebook.succeed("run")
    assert displayed.order.count("strip") == 1
    assert states(displayed)[-1] == "ok"


def test_a_run_that_waits_says_so_and_can_be_stopped(
    notebook: LiveNotebook, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = f"%%sky --background\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)"
    notebook.succeed(f"{first}\n")
    notebook.succeed("first = _")
    second = notebook.succeed("%%sky --background\nprint('never')")
    assert states(second) == ["waiting"]
    run = second.snapshot["run"]["id"]
    assert notebook.ask({"kind": "stop", "run": run}) == "ok"
    ended = notebook.run("second = _\nsecond.result()")
    assert ended.error is not None
    go.touch()
    notebook.succeed("first.result()")


DEAF = """%%sky --nodes 1 --plugin none
import time
while True:
    try:
        print("here")
        time.sleep(600)
    except KeyboardInterrupt:
        pass
"""


def test_it_shows_the_end_of_a_run_that_stop_has_not_ended_at_once(
    opened: Callable[..., LiveNotebook],
) -> None:
    notebook = opened()
    notebook.succeed("%config Sky.stop_deadline = 3")
    cell = notebook.start(DEAF)
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    notebook.interrupt()
    notebook.finish(cell)
    assert "it did not react yet" in cell.sentence and states(cell)[-1] == "running"
    notebook.watch(cell, lambda cell: states(cell)[-1] != "running")
    [rank] = cell.snapshot["ranks"]
    assert rank["error"] == "it did not react to Stop within 3 s, and was ended"
    assert cell.strips[-1]["text/plain"].startswith("■ stopped after")


def test_it_opens_as_the_user_left_it(notebook: LiveNotebook) -> None:
    for is_open in (True, False):
        notebook.ask({"kind": "open", "open": is_open})
        cell = notebook.succeed("%%sky\npass")
        assert cell.strips[-1][MIME]["open"] is is_open
        assert ("<details open>" in cell.strips[-1]["text/html"]) is is_open


def test_the_user_can_have_it_otherwise(notebook: LiveNotebook) -> None:
    notebook.succeed("%config Sky.panel = 'open'")
    assert notebook.succeed("%%sky\npass").strips[-1][MIME]["open"] is True
    notebook.succeed("%config Sky.panel = 'none'")
    assert notebook.succeed("%%sky\npass").strips == []
    wrong = notebook.run("%config Sky.panel = 'big'").stderr
    assert 'Sky.panel takes one of "auto", "open", "closed", "none"' in wrong
    notebook.succeed("%config Sky.panel = 'auto'")


def test_a_page_can_ask_how_a_run_ended(notebook: LiveNotebook) -> None:
    cell = notebook.succeed("%%sky\nfor step in range(3): print('step', step)")
    cluster, run = cell.snapshot["cluster"]["id"], cell.snapshot["run"]["id"]
    record = notebook.ask_action({"action": "record", "cluster": cluster, "run": run})
    assert record["snapshot"]["run"]["state"] == "ok"
    assert (record["text"], record["cut"]) == ("step 0\nstep 1\nstep 2\n", False)
    assert Tags(record["html"]).tags >= {"details", "pre"}

    # With several ranks, it is what the cell shows of all of them.
    cell = notebook.succeed("%%sky --stdout all\nprint('done')")
    record = notebook.ask_action(
        {"action": "record", "cluster": cluster, "run": cell.snapshot["run"]["id"]}
    )
    assert sorted(record["text"].splitlines()) == ["0 │ done", "1 │ done"]
    assert not record["cut"]


def test_nothing_a_rank_prints_becomes_markup(notebook: LiveNotebook) -> None:
    cell = notebook.succeed("%%sky --ranks all\nprint('<script>alert(1)</script>\\x1b]0;x\\x07')")
    html: Any = cell.strips[-1]["text/html"]
    assert "script" not in Tags(html).tags and "\x1b" not in html
