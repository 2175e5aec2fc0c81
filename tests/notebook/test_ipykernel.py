"""What depends on the kernel around the notebook, on the versions of ipykernel that users have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT

IPYKERNEL_6 = ROOT / "build" / "ipykernel6"


@pytest.fixture(scope="module", params=["6", "7"])
def notebook(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveNotebook]:
    place = tmp_path_factory.mktemp("kernel") / "notebook.ipynb"
    if request.param == "6":
        if not IPYKERNEL_6.exists():
            pytest.skip("ipykernel 6 is not here: `make test` brings it")
        path = os.pathsep.join([str(IPYKERNEL_6), os.environ["PYTHONPATH"]])
        made = LiveNotebook(place, encryption="disabled", PYTHONPATH=path)
    else:
        made = LiveNotebook(place)
    try:
        assert made.value("__import__('ipykernel').__version__").startswith(request.param)
        made.succeed("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
        made.succeed("%%sky --nodes 2\nimport os, time, jupyter_sky as sky")
        yield made
    finally:
        made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Callable[[], str]:
    """A line of code that waits until the test lets it go on, by touching ``tmp_path / "go"``."""
    return lambda: f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"


def test_output_is_live_and_in_the_cell_that_started_the_run(
    notebook: LiveNotebook, gate: Callable[[], str], tmp_path: Path
) -> None:
    first = notebook.start(
        f"%%sky\nprint('before')\ndisplay('figure')\n{gate()}\nprint('after')\n'value'"
    )
    second = notebook.start("print('of the notebook')")
    notebook.until(first, lambda cell: cell.shown and "before" in cell.stdout)
    assert first.shown == ["'figure'"] and "after" not in first.stdout
    (tmp_path / "go").touch()
    notebook.finish(first)
    notebook.finish(second)
    assert (first.stdout, first.shown) == ("before\nafter\n", ["'figure'", "'value'"])
    assert (second.stdout, second.shown) == ("of the notebook\n", [])


def test_a_run_in_the_background_prints_into_no_other_cell(
    notebook: LiveNotebook, gate: Callable[[], str], tmp_path: Path
) -> None:
    started = notebook.succeed(f"%%sky --background\nprint('before')\n{gate()}\nprint('after')")
    assert started.snapshot["run"]["state"] in ("waiting", "running")
    notebook.succeed("run = _")
    (tmp_path / "go").touch()
    waiting = notebook.succeed("await run")
    assert (waiting.stdout, waiting.shown) == ("", ["{}"])
    assert notebook.value("run.done, run.output") == (True, "before\nafter\n")
    assert "done after" in notebook.value("repr(run)")


def test_wide_tables_look_as_in_the_notebook(notebook: LiveNotebook) -> None:
    table = "import pandas as pd\nwide = pd.DataFrame([range(15, 45)])\nprint(wide)\nwide"
    there = notebook.succeed(f"%%sky --ranks head\n{table}")  # before the notebook has pandas
    here = notebook.succeed(table)
    assert (there.stdout, there.data) == (here.stdout, here.data)
    notebook.succeed("pd.set_option('display.max_columns', 4)")
    there, here = notebook.succeed("%%sky --ranks head\nwide"), notebook.succeed("wide")
    assert there.data == here.data


def test_stop_reaches_the_ranks_and_the_next_cell_runs(notebook: LiveNotebook) -> None:
    cell = notebook.start("%%sky --stdout all\nprint('here')\nwhile True: time.sleep(0.01)")
    notebook.until(cell, lambda cell: cell.stdout.count("here") == 2)
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.sentence.startswith("KeyboardInterrupt: ranks 0-1 stopped after")
    after = notebook.succeed("%%sky --stdout all\nprint('on', sky.instance_info().rank)")
    assert sorted(after.stdout.splitlines()) == ["0 │ on 0", "1 │ on 1"]


def test_stop_while_the_notebook_waits_for_a_background_run(notebook: LiveNotebook) -> None:
    notebook.succeed("%%sky --background\nwhile True: time.sleep(0.01)")
    notebook.succeed("run = _")
    cell = notebook.start("print('waiting')\nrun.result()")
    notebook.until(cell, lambda cell: cell.stdout)
    notebook.interrupt()
    assert "KeyboardInterrupt" in notebook.finish(cell).traceback
    assert notebook.value("run.done") is False
    notebook.succeed("run.cancel()")
    assert "KeyboardInterrupt" in notebook.run("run.result()").traceback


def test_a_run_that_was_stopped_ends_the_tasks_that_await_it_and_not_the_kernel(
    notebook: LiveNotebook,
) -> None:
    notebook.succeed("%%sky --background\nwhile True: time.sleep(0.01)")
    notebook.succeed("run = _\nimport asyncio")
    notebook.succeed("run.cancel()")
    for waiting in ("await asyncio.gather(run, asyncio.sleep(0))", "await run"):
        cell = notebook.run(waiting)
        assert "RunStopped: ranks 0-1 stopped after" in cell.traceback
    assert notebook.value("1 + 1") == 2


def test_a_page_is_answered_while_a_cell_runs(
    notebook: LiveNotebook, gate: Callable[[], str], tmp_path: Path
) -> None:
    has_subshells = notebook.value("__import__('ipykernel').version_info[0] >= 7")
    cell = notebook.start(f"%%sky\nprint('busy')\n{gate()}")
    notebook.until(cell, lambda cell: cell.stdout)
    assert notebook.ask({"kind": "select", "run": "of another page", "rank": 1}) == "ok"
    # The kernel says after that message that it is idle, and then that it is not.
    notebook.until(cell, lambda cell: cell.said_busy == 2)
    # So it does after what JupyterLab asks by itself, as for each new widget.
    notebook.ask_kernel("usage_request", {})
    notebook.until(cell, lambda cell: cell.said_busy == 3)
    if has_subshells:
        notebook.ask_kernel("create_subshell_request", {})
        notebook.until(cell, lambda cell: cell.said_busy == 4)
    (tmp_path / "go").touch()
    assert notebook.finish(cell).error is None


def test_a_page_is_answered_after_an_action_that_was_stopped(notebook: LiveNotebook) -> None:
    cluster = notebook.succeed("%%sky\npass").snapshot["cluster"]["id"]
    request = {"action": "where", "cluster": cluster}
    notebook.succeed(
        "from jupyter_sky.cluster.errors import Interrupted\n"
        "from jupyter_sky.notebook.sidebar import actions\n"
        "def stopped(cluster): raise Interrupted('stopped after 3 s.')\n"
        "actions.where_ranks_are, where = stopped, actions.where_ranks_are"
    )
    try:
        assert notebook.fail_action(request) == "stopped after 3 s."
    finally:
        notebook.succeed("actions.where_ranks_are = where")
    assert "nothing is running" in notebook.say_action(request)


def test_what_a_call_prints_for_a_future_is_in_the_cell_that_made_the_call(
    notebook: LiveNotebook, gate: Callable[[], str], tmp_path: Path
) -> None:
    notebook.succeed("import os, time\nimport jupyter_sky as sky")
    notebook.succeed("pool = sky.ComputePool(name='futures')\npool.__enter__()")
    try:
        notebook.succeed("(sky.compute(print)('at once') > pool).result()")
        first = notebook.succeed(
            f"def late():\n    print('begun', flush=True)\n    {gate()}\n    print('late')\n"
            "future = sky.compute(late)() > pool\nprint('made')"
        )
        second = notebook.start("print('of the other cell')\nfuture.result()")
        (tmp_path / "go").touch()
        notebook.finish(second, first)
        assert second.stdout == "of the other cell\n"
        assert "made\n" in first.stdout and first.stdout.endswith("late\n")
    finally:
        notebook.succeed("pool.__exit__(None, None, None)")


_STOPPED_WHILE_IT_ASKS = """
import contextlib
thread = get_ipython().kernel.iopub_thread.thread

class Interrupted:
    \"\"\"The lock of the thread, if Ctrl-C comes when it was not to be had.\"\"\"
    held = True
    def acquire(self, *arguments): raise KeyboardInterrupt
    def locked(self): return self.held
    def release(self): self.held = False

lock = getattr(thread, "_tstate_lock", None)  # later versions of Python do without
thread._tstate_lock = Interrupted()
with contextlib.suppress(KeyboardInterrupt):
    thread.is_alive()
is_sent = thread.is_alive()
thread._tstate_lock = lock
"""


def test_stop_leaves_the_thread_that_sends_output_alone(notebook: LiveNotebook) -> None:
    notebook.succeed(_STOPPED_WHILE_IT_ASKS)
    assert notebook.value("is_sent") is True
