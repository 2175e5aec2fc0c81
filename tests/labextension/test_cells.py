"""The strips of runs in the cells of JupyterLab, whatever becomes of page and kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser, ask, settings
from tests.notebook.panel.bench import STILL
from tests.notebook.panel.jupyter import CONNECTED, Server
from tests.waiting import until

skip_without("jupyterlab")

Open = Callable[..., SidebarUser]

LOAD = "%load_ext jupyter_sky\n%config Sky.plugin = 'none'"

ENDLESS = """%%sky --nodes 2
import itertools, os, time
for step in itertools.count():
    if step < 30:  # of a run in the background, the last 40 lines are shown
        print('step', step)
    time.sleep(0.3)
    if step >= 12 and os.path.exists({end!r}):
        break
"""


UNREADABLE = json.dumps(
    {
        "version": 1,
        "jupyter_sky": "",
        "trouble": "The registry of clusters cannot be read: it is locked.",
        "clusters": [],
    }
)

HAS_END = """() => jupyterapp.shell.currentWidget.content.widgets.some(
  ({ model }) => model.outputs?.toJSON().some(
    ({ data }) => data?.['text/plain']?.startsWith('✓ finished after')))"""


def test_a_later_cell_leaves_the_strip_of_an_earlier_one(
    open_notebook: Open, shots: Path, tmp_path: Path
) -> None:
    user = open_notebook("lab", "earlier")
    user.run(LOAD)
    first = user.run("%%sky --nodes 2\nprint('loss 0.3')")
    failed = user.run("%%sky\nimport jupyter_sky as sky\n1 / (sky.instance_info().rank - 1)")
    user.wait_for_state(failed, "Failed")
    strip = user.strip(failed)
    strip.get_by_role("button", name="rank 1 failed").click()
    strip.get_by_role("log").get_by_role("button", name="Cell In[3], line 3").click()
    line = "jupyterapp.shell.currentWidget.content.activeCell.editor.getCursorPosition().line"
    user.page.wait_for_function(f"{line} === 2")
    user.page.screenshot(path=shots / "cells-failed.png")

    user.wait_for_state(first, "Finished")
    row = user.strip(first).get_by_role("option", name="rank 0,")
    row.get_by_text("loss 0.3").wait_for()
    assert "finished" in row.inner_text()

    # A console of the notebook's kernel has strips, too, whose buttons work.
    user.page.evaluate("() => jupyterapp.commands.execute('notebook:create-console')")
    user.page.locator(".jp-CodeConsole-input .cm-content").click()
    user.page.keyboard.insert_text(ENDLESS.format(end=str(tmp_path / "never")))
    user.page.keyboard.press("Shift+Enter")
    console = user.page.locator(".jp-CodeConsole-content")
    console.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    strip = user.strip(console)
    strip.get_by_role("button", name=re.compile("^Running")).click()
    strip.get_by_role("option", name="rank 1,").click()
    strip.get_by_role("log", name="Output of rank 1").get_by_text("step 0", exact=True).wait_for()
    strip.get_by_role("button", name="Stop", exact=True).click()
    user.wait_for_state(console, "Stopped")


def test_what_clears_the_output_leaves_the_strip(open_notebook: Open, tmp_path: Path) -> None:
    user = open_notebook("lab", "cleared")
    user.run(LOAD)
    cell = user.run(
        "%%sky --nodes 1\nfrom IPython.display import clear_output\nprint('before')\n"
        "clear_output()\nprint('after')"
    )
    user.wait_for_state(cell, "Finished")
    cell.locator(".jp-RenderedText").get_by_text("after").wait_for()
    assert cell.get_by_text("before").count() == 1, "in the code alone"

    # The user clears what an earlier cell and a running one show.
    running = user.start(ENDLESS.format(end=str(tmp_path / "never")).replace(" --nodes 2", ""))
    running.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.page.evaluate("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    running.get_by_text("step 3", exact=True).wait_for(state="detached")
    user.wait_for_state(running, "Running")
    assert cell.locator(".jp-OutputArea-output").count() == 0
    user.strip(running).get_by_role("button", name="Stop", exact=True).click()
    user.wait_for_state(running, "Stopped")


def test_a_loop_that_clears_its_output_leaves_the_strip_in_the_users_hands(
    open_notebook: Open,
) -> None:
    user = open_notebook("lab", "live-plot")
    user.run(LOAD)
    cell = user.start(
        "%%sky --nodes 2\nimport itertools, time\nfrom IPython.display import clear_output\n"
        "for step in itertools.count():\n    clear_output(wait=True)\n"
        "    print(f'step {step};')\n    time.sleep(0.05)"
    )
    shown = cell.locator(".jp-RenderedText")
    strip = user.strip(cell)

    def further() -> None:
        """Wait until the output was cleared several times."""
        shown.get_by_text(re.compile(r"^step \d+;")).wait_for()
        steps = "node => Number(/step (\\d+);/.exec(node.innerText)?.[1] ?? 0)"
        now = cell.evaluate(steps)
        handle = cell.element_handle()
        user.page.wait_for_function(
            f"([node, now]) => ({steps})(node) > now + 3", arg=[handle, now]
        )

    def press(name: str, role: str = "button") -> None:
        """Press a button of the mouse as long as a hand does."""
        place = strip.get_by_role(role, name=name, exact=role == "button")
        x, y = place.evaluate(
            "node => (({ x, y, height }) => [x + 9, y + height / 2])(node.getBoundingClientRect())"
        )
        user.page.mouse.move(x, y)
        user.page.mouse.down()
        further()
        user.page.mouse.up()

    further()
    press("rank 1,", role="option")
    chosen = strip.get_by_role("option", name="rank 1,", selected=True)
    chosen.wait_for()
    further()
    assert strip.evaluate("node => node.contains(document.activeElement)")
    press("Stop")
    user.wait_for_state(cell, "Stopped")


def select_rank_1(strip: Any) -> None:
    opener = strip.get_by_role("button", name=re.compile("^Running"))
    if opener.get_attribute("aria-expanded") == "false":
        opener.click()
    strip.get_by_role("option", name="rank 1,").click()


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_a_reload_in_the_middle_of_a_run(
    open_notebook: Open, shots: Path, tmp_path: Path, saved: bool
) -> None:
    user = open_notebook("lab", f"reloaded-{saved}")
    user.run(LOAD)
    end = tmp_path / "end"
    cell = user.start(ENDLESS.format(end=str(end)), save=True)
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    if saved:
        user.saved()
    user.load_again()

    # The kernel is busy, and what it sends does not reach the page any more.
    cell = user.cell("step in itertools")
    user.wait_for_state(cell, "Running")
    strip = user.strip(cell)
    # It comes with a new strip; what is selected in the one before is forgotten.
    shown = cell.locator(".jp-RenderedText")
    last = max([2, *map(int, re.findall(r"step (\d+)", "".join(shown.all_inner_texts())))])
    strip.get_by_role("button", name="Show missing output").click()
    shown.get_by_text(f"step {last + 1}").wait_for()
    shown.get_by_text("step 29").wait_for()  # from then on it comes by itself
    select_rank_1(strip)
    # Of a run that has gone on for long, the log shows the end.
    log = strip.get_by_role("log", name="Output of rank 1")
    log.get_by_text(re.compile(r"^step \d+$")).last.wait_for()
    user.page.screenshot(path=shots / f"cells-reloaded-{saved}.png")

    end.touch()
    user.wait_for_state(cell, "Finished")
    cell.locator(".jp-RenderedText").get_by_text("step 12").wait_for()
    assert user.page.get_by_text("Loading widget").count() == 0
    user.page.wait_for_function(HAS_END)
    [ended] = [each for each in user.saved().cells if "itertools" in each.source]
    *_, record, printed = ended.outputs
    assert record.data["text/plain"].startswith("✓ finished after")
    assert "step 12\n" in printed.text


def test_an_answer_stays_where_missing_output_is_shown(open_notebook: Open, tmp_path: Path) -> None:
    user = open_notebook("lab", "answered")
    user.run(LOAD)
    end = tmp_path / "end"
    ask = "lr = input('learning rate? ')\nfor step"
    code = ENDLESS.format(end=str(end)).replace("for step", ask)
    cell = user.start(code.replace("--nodes 2", "--nodes 1"))
    cell.locator(".jp-Stdin-input").fill("0.1")
    cell.locator(".jp-Stdin-input").press("Enter")
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.saved()
    user.load_again()

    cell = user.cell("step in itertools")
    user.strip(cell).get_by_role("button", name="Show missing output").click()
    shown = cell.locator(".jp-RenderedText")
    shown.get_by_text("step 12").wait_for()
    answered = re.compile(r"learning rate\? +0\.1\s+step 0\s+step 1\s")
    assert answered.search("\n".join(shown.all_inner_texts()))
    end.touch()
    user.wait_for_state(cell, "Finished")
    user.page.wait_for_function(HAS_END)
    assert answered.search("\n".join(shown.all_inner_texts()))


def test_what_several_ranks_have_printed_is_there_after_a_reload(
    open_notebook: Open, tmp_path: Path
) -> None:
    user = open_notebook("lab", "reloaded-several")
    user.run(LOAD)
    end = tmp_path / "end"
    code = ENDLESS.replace("--nodes 2", "--nodes 2 --stdout all").format(end=str(end))
    cell = user.start(code)
    cell.locator(".jp-RenderedText").get_by_text("1 │ step 3").wait_for()
    user.saved()
    user.load_again()

    cell = user.cell("step in itertools")
    user.wait_for_state(cell, "Running")
    strip = user.strip(cell)
    strip.get_by_role("button", name="Show missing output").wait_for()
    select_rank_1(strip)
    log = strip.get_by_role("log", name="Output of rank 1")
    log.get_by_text("step 9", exact=True).wait_for()
    strip.get_by_role("button", name="Show missing output").click()
    shown = cell.locator(".jp-RenderedText")
    for rank in range(2):
        shown.get_by_text(f"{rank} │ step 9").wait_for()
    strip.get_by_text("The cell shows what this rank prints.").wait_for()
    end.touch()
    user.wait_for_state(cell, "Finished")
    for rank in range(2):
        shown.get_by_text(f"{rank} │ step 12").wait_for()


def test_a_reload_in_the_middle_of_a_loop_that_clears_its_output(
    open_notebook: Open, tmp_path: Path
) -> None:
    user = open_notebook("lab", "reloaded-plot")
    user.run(LOAD)
    end = tmp_path / "end"
    cell = user.start(
        "%%sky --nodes 1\nimport os, time\nfrom IPython.display import clear_output\nstep = 0\n"
        f"while not os.path.exists({str(end)!r}):\n    clear_output(wait=True)\n"
        "    print('step', step)\n    step += 1\n    time.sleep(0.05)\nprint('the end')"
    )
    cell.locator(".jp-RenderedText").get_by_text(re.compile(r"^step \d+")).wait_for()
    user.saved()
    user.load_again()

    # With each clear, the kernel sends the strip again, which still is not for this page.
    cell = user.cell("clear_output")
    user.strip(cell).get_by_role("button", name="Show missing output").click()
    end.touch()
    user.wait_for_state(cell, "Finished")
    cell.locator(".jp-RenderedText").get_by_text("the end").wait_for()
    user.page.wait_for_function(HAS_END)


def test_cells_that_wait_for_their_turn_are_shown_after_a_reload(
    open_notebook: Open, server: Server, tmp_path: Path
) -> None:
    user = open_notebook("lab", "reloaded-queue")
    user.run(LOAD)
    waits = (
        "%%sky --nodes 1\nimport os, time\n"
        "while not os.path.exists({!r}):\n    time.sleep(0.05)\nprint('end of', {!r})"
    )
    ends = [tmp_path / name for name in ("first", "second")]
    for end in ends:
        cell = user.start(waits.format(str(end), end.name), save=True)
        if end is ends[0]:
            user.wait_for_state(cell, "Running")
    user.start("%%sky\nprint('at', 'once')", save=True)
    user.load_again()

    user.wait_for_state(user.cell("'first'"), "Running")
    ends[0].touch()
    user.wait_for_state(user.cell("'first'"), "Finished")
    second = user.cell("'second'")
    user.wait_for_state(second, "Running")
    ends[1].touch()
    user.wait_for_state(second, "Finished")
    second.locator(".jp-RenderedText").get_by_text("end of second").wait_for()
    last = user.cell("'once'")
    user.wait_for_state(last, "Finished")
    last.locator(".jp-RenderedText").get_by_text("at once").wait_for()


def test_a_second_page_of_a_notebook_leaves_its_own_copy_as_it_was_saved(
    open_notebook: Open, server: Server, tmp_path: Path
) -> None:
    user = open_notebook("lab", "two-pages")
    user.run(LOAD)
    end = tmp_path / "end"
    end.touch()
    cell = user.run(
        "%%sky --nodes 1 --cluster pages\nimport os, time\n"
        f"while not os.path.exists({str(end)!r}):\n    time.sleep(0.05)"
    )
    user.wait_for_state(cell, "Finished")
    user.saved()
    second = user.page.context.browser.new_page(**STILL)
    second.set_default_timeout(100_000)
    second.goto(server.url("lab", user.notebook))
    second.wait_for_function(CONNECTED)
    second.evaluate("() => void jupyterapp.commands.execute('jupyter-sky:show')")
    card = second.get_by_role("region", name="Clusters").get_by_role("listitem")
    card.filter(has_text="idle · ").wait_for()
    end.unlink()
    user.page.evaluate("() => void jupyterapp.commands.execute('notebook:run-cell')")
    card.filter(has_text="running · ").wait_for()
    # It would be saved by itself, and the first page be told that the file has changed.
    assert not second.evaluate("() => jupyterapp.shell.currentWidget.context.model.dirty")
    end.touch()
    user.wait_for_state(cell, "Finished")
    second.close()


def test_the_run_is_there_after_a_reload_however_seldom_the_server_is_asked(
    open_notebook: Open, server: Server, tmp_path: Path
) -> None:
    user = open_notebook("lab", "at-once")
    user.run(LOAD)
    end = tmp_path / "end"
    cell = user.start(ENDLESS.format(end=str(end)), save=True)
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.start("%%sky\nprint('after', 'it')", save=True)
    last = user.start("%%sky\nprint('at', 'last')", save=True)
    last.locator(".jp-InputPrompt", has_text="[*]").wait_for()
    with settings(server, refresh=60):  # and five times slower while the sidebar is closed
        user.load_again()
        user.wait_for_state(user.cell("itertools"), "Running")

    # It ends while no page is there, as do those that wait for it.
    url = user.page.url
    user.page.goto("about:blank")
    end.touch()
    until(lambda: last_run(server) == ("print('at', 'last')", "ok"))
    user.load_again(url=url)
    for code, text in {"itertools": "step 12", "'after'": "after it", "'at'": "at last"}.items():
        cell = user.cell(code)
        user.wait_for_state(cell, "Finished")
        cell.locator(".jp-RenderedText").get_by_text(text).wait_for()


CLOSE = "() => jupyterapp.shell.currentWidget.dispose()"
OPEN = "path => jupyterapp.commands.execute('docmanager:open', { path }).then(() => {})"


@pytest.mark.parametrize("option", ["", " --background"])
def test_a_notebook_that_is_closed_and_opened_again_misses_nothing(
    open_notebook: Open, server: Server, tmp_path: Path, option: str
) -> None:
    user = open_notebook("lab", f"closed{option.strip()}")
    user.run(LOAD)
    for is_over in (False, True):
        end = tmp_path / f"end-{is_over}"
        cell = user.start(ENDLESS.format(end=str(end)).replace("\n", f"{option}\n", 1), save=True)
        cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
        user.saved()
        user.page.evaluate(CLOSE)
        if is_over:
            end.touch()
            until(lambda: last_run(server)[1] == "ok")
        user.page.evaluate(OPEN, user.notebook.name)
        cell = user.cell(f"end-{is_over}")
        text = cell.locator(".jp-RenderedText").get_by_text(re.compile("^step 0"))
        if not is_over:
            if option:
                text.get_by_text("step 13").wait_for()
            else:
                user.strip(cell).get_by_role("button", name="Show missing output").wait_for()
            end.touch()
        user.wait_for_state(cell, "Finished")
        text.get_by_text("step 12").wait_for()
        assert text.count() == 1


HEAR_LATE = """() => {
  const socket = jupyterapp.shell.currentWidget.sessionContext.session.kernel._ws;
  const hear = socket.onmessage;
  const late = [];
  socket.onmessage = (message) => void late.push(message);
  window.catchUp = () => {
    socket.onmessage = hear;
    late.forEach(hear);
  };
}"""


def test_a_run_that_is_heard_late_is_shown_once_and_saved_where_its_cell_was_moved_to(
    open_notebook: Open, tmp_path: Path
) -> None:
    user = open_notebook("lab", "late")
    user.run(LOAD)
    user.page.evaluate(HEAR_LATE)
    end = tmp_path / "end"
    cell = user.start(ENDLESS.format(end=str(end)))
    user.do("show")
    user.card("late", "running").wait_for()  # as the server says
    user.page.evaluate("() => catchUp()")
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.strip(cell).wait_for()  # an error if there are two

    # JupyterLab does not know any more which display an output of a moved cell is.
    user.page.evaluate("() => jupyterapp.commands.execute('notebook:move-cell-up')")
    end.touch()
    user.wait_for_state(user.cell("itertools"), "Finished")
    user.page.wait_for_function(HAS_END)


def last_run(server: Server) -> tuple[str, str]:
    """Return title and state of the last run of the only cluster."""
    [entry] = ask(server, "clusters")["clusters"]
    run = entry["snapshot"]["run"]
    return run["title"], run["state"]


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (404, "no", "Jupyter's server has no jupyter_sky"),
        (200, UNREADABLE, "The registry of clusters cannot be read: it is locked."),
    ],
    ids=["no extension", "no registry"],
)
def test_a_run_goes_on_where_the_server_cannot_tell_of_it(
    open_notebook: Open, tmp_path: Path, status: int, answer: str, said: str
) -> None:
    user = open_notebook("lab", f"untold-{status}")
    user.run(LOAD)
    cell = user.start(ENDLESS.format(end=str(tmp_path / "never")))
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.saved()
    user.page.route(
        "**/jupyter-sky/api/**", lambda route: route.fulfill(status=status, body=answer)
    )
    user.load_again()
    cell = user.cell("itertools")
    strip = user.strip(cell)
    strip.get_by_role("status").filter(has_text=said).wait_for()
    user.wait_for_state(cell, "Running")
    strip.get_by_role("button", name="Stop", exact=True).click()
    user.wait_for_state(cell, "Stopped")


def test_a_kernel_that_is_restarted_in_the_middle_of_a_run(
    open_notebook: Open, shots: Path, tmp_path: Path
) -> None:
    user = open_notebook("lab", "restarted")
    user.run(LOAD)
    cell = user.start(ENDLESS.format(end=str(tmp_path / "never")))
    cell.locator(".jp-RenderedText").get_by_text("step 3").wait_for()
    user.restart_kernel()
    strip = user.strip(cell)
    strip.get_by_text("The kernel was restarted, and the run goes on").wait_for()
    missing = "some output may be missing here: `%sky logs 0 --save FILE`"
    printed = cell.locator(".jp-RenderedText").filter(has_text=missing)
    printed.wait_for()
    user.wait_for_state(cell, "Running")
    user.page.screenshot(path=shots / "cells-restarted.png")
    strip.get_by_role("button", name="Stop").click()
    strip.get_by_text("The kernel ended before this run").wait_for()
    user.wait_for_state(cell, "Ended")
    assert printed.inner_text().count(missing) == 1
