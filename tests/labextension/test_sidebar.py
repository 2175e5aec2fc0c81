"""The sidebar in real JupyterLab and Notebook 7, on real clusters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser
from tests.notebook.panel.bench import LEGIBLE
from tests.notebook.panel.samples import HOSTILE
from tests.waiting import until

skip_without("jupyterlab", "notebook")

Open = Callable[..., SidebarUser]


LOAD = "%load_ext jupyter_sky\n%config Sky.plugin = 'none'"

ENDLESS = """%%sky --nodes 2 --cluster {name}
import itertools, time
import jupyter_sky as sky
rank = sky.instance_info().rank
for epoch in itertools.count():
    print(f"rank {{rank}}, epoch {{epoch}}")
    time.sleep(0.3)"""


@pytest.mark.parametrize("place", ["lab", "notebook"])
def test_a_user_follows_a_cluster_and_stops_it(
    open_notebook: Open, shots: Path, place: str
) -> None:
    name = f"seen-in-{place}"
    user = open_notebook(place, f"follow-{place}")
    user.run(LOAD)
    cell = user.start(ENDLESS.format(name=name))
    user.card(name, "running").get_by_role("button", name=f"Go to follow-{place}").wait_for()

    # What ranks print is there while the cell runs.
    card = user.opened(name)
    log = card.get_by_role("log", name="Output of rank 0")
    # It shows the end of what was printed, which goes on.
    log.get_by_text(re.compile(r"^rank 0, epoch ([3-9]|\d\d+)$")).last.wait_for()
    card.get_by_role("option", name="rank 1,").click()
    log = card.get_by_role("log", name="Output of rank 1")
    of_rank_1 = log.get_by_text(re.compile(r"^rank 1, epoch ([3-9]|\d\d+)$")).last
    of_rank_1.wait_for()
    assert user.is_busy(cell)
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        of_rank_1.wait_for()
        assert user.sidebar.evaluate(LEGIBLE) == {"outside": [], "faint": []}
        user.page.screenshot(path=shots / f"sidebar-{place}-{theme.lower()}.png")

    # Before it is ended, the user is told what that ends.
    card.get_by_role("button", name="End this cluster").click()
    dialog = user.page.get_by_role("dialog")
    dialog.get_by_text('The run "for epoch in itertools.count()" ends, and all').wait_for()
    user.confirm("Cancel")
    card.get_by_role("button", name="Stop", exact=True).click()
    cell.get_by_text("KeyboardInterrupt").first.wait_for()
    user.card(name, "idle").wait_for()
    user.run("%%sky\nprint('goes on', epoch >= 3)").get_by_text("goes on True").wait_for()

    # A page of a node looks like what it is: a link, as that to the notebook.
    user.run("%sky forward 6006")
    page = card.get_by_role("link", name="Port 6006 of rank 0")
    notebook = card.get_by_role("button", name=f"Go to follow-{place}")
    colour = "link => getComputedStyle(link).color"
    assert page.evaluate(colour) == notebook.evaluate(colour)


def test_two_notebooks_and_a_kernel_that_dies(open_notebook: Open, shots: Path) -> None:
    one, two = open_notebook("lab", "one"), open_notebook("lab", "two")
    for user, name in ((one, "first"), (two, "second")):
        user.run(f"{LOAD}\n%sky up --nodes 1 --cluster {name}")
    for name in ("first", "second"):
        one.card(name, "idle").wait_for()

    # The cluster outlives its kernel, and can be ended without one.
    two.start("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    gone = one.card("second")
    gone.get_by_role("button", name="Go to").wait_for(state="detached")
    one.page.screenshot(path=shots / "sidebar-dead-kernel.png")
    gone.hover()
    gone.get_by_role("button", name="End this cluster").click()
    one.page.screenshot(path=shots / "sidebar-end.png")
    one.confirm("End")
    gone.wait_for(state="detached")
    one.card("first", "idle").wait_for()


def test_the_calls_of_a_pool_are_followed_and_stopped(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "calls")
    user.run(f"{LOAD}\nimport time\nimport jupyter_sky as sky")
    user.run("pool = sky.ComputePool(nodes=2, name='calls')\npool.__enter__()")
    cell = user.start("pool.map(time.sleep, [0.1] * 5_000)")
    cell.get_by_text("5,000 calls of sleep").wait_for()
    card = user.opened("calls")
    card.get_by_text(re.compile("[1-9][0-9]*/5000")).first.wait_for()
    user.page.screenshot(path=shots / "sidebar-calls.png")
    card.get_by_role("button", name="Stop", exact=True).click()
    cell.get_by_text("the calls were stopped").first.wait_for()
    user.run("print(pool.map(abs, [-1]))").get_by_text("[1]").wait_for()
    user.run("pool.__exit__(None, None, None)")
    card.wait_for(state="detached")


def test_a_page_that_is_loaded_again_shows_what_still_runs(open_notebook: Open) -> None:
    user = open_notebook("lab", "reload")
    user.run(LOAD)
    user.start(ENDLESS.format(name="lasting"))
    user.card("lasting", "running").wait_for()
    user.reload()
    card = user.opened("lasting")
    log = card.get_by_role("log", name="Output of rank 0")
    log.get_by_text(re.compile(r"epoch ([2-9]|\d\d+)$")).first.wait_for()
    card.get_by_role("button", name="Stop", exact=True).click()
    user.card("lasting", "idle").wait_for()


def test_a_rank_that_is_chosen_before_anything_has_run_shows_what_it_prints_later(
    open_notebook: Open,
) -> None:
    user = open_notebook("lab", "early")
    user.run(f"{LOAD}\n%sky up --nodes 2 --cluster early")
    card = user.opened("early")
    card.get_by_role("option").nth(1).click()
    user.run(
        "%%sky --stdout none\nimport jupyter_sky as sky\nprint('I am', sky.instance_info().rank)"
    )
    card.get_by_role("log", name="Output of rank 1").get_by_text("I am 1").wait_for()


def test_many_ranks_and_what_they_print_do_no_harm(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "many")
    user.run(LOAD)
    user.run(
        "%%sky --nodes 16 --procs-per-node 4 --cluster many --stdout none\n"
        f"import jupyter_sky as sky\nprint('rank', sky.instance_info().rank, {HOSTILE!r})"
    )
    card = user.opened("many")
    card.get_by_role("option").nth(63).wait_for()
    card.get_by_role("option").first.click()
    user.page.keyboard.press("End")
    user.page.keyboard.press("Enter")
    card.get_by_role("log", name="Output of rank 63").get_by_text("rank 63").wait_for()
    assert user.sidebar.evaluate(LEGIBLE) == {"outside": [], "faint": []}
    user.page.screenshot(path=shots / "sidebar-many.png")

    card.get_by_role("button", name="Open the log").click()
    user.page.get_by_role("textbox", name="Ranks, like").fill("62")
    user.page.keyboard.press("Enter")
    log = user.page.get_by_role("log", name="Log of rank 62")
    log.get_by_text("onerror=alert(1)").wait_for()
    assert log.locator(".jsky-text-line").all_inner_texts() == [
        "rank 62 <img src=x onerror=alert(1)><script>alert(2)</script>redesrever &amp; </pre>"
    ]
    assert user.flaws(".jsky-log") == []
    user.page.screenshot(path=shots / "sidebar-log.png")
    assert user.page.locator(".jsky-ours").locator("img, script").count() == 0
    card.get_by_role("button", name="Go to many.ipynb").click()
    user.page.locator(".lm-TabBar-tab.jp-mod-current", has_text="many.ipynb").wait_for()


def test_what_a_user_does_to_a_cluster(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "doing")
    user.run(f"{LOAD}\n%sky up --nodes 2 --cluster doing")
    user.run("%%sky\nkept = 1")
    card = user.card("doing", "idle")
    card.get_by_role("button", expanded=False).focus()
    user.page.keyboard.press("Enter")
    tools = card.get_by_role("toolbar").get_by_role("button")
    tools.nth(6).wait_for()
    # At one moment, since a card moves when others come. They are in one line.
    tops = tools.evaluate_all("all => all.map(each => each.getBoundingClientRect().y)")
    assert len(set(tops)) == 1

    card.get_by_role("button", name="Restart all ranks").click()
    user.page.get_by_text("All variables on its ranks are lost.").wait_for()
    user.confirm("Cancel")
    user.run("%%sky\nprint('kept', kept)").get_by_text("kept 1").wait_for()
    card.get_by_role("button", name="Restart all ranks").click()
    user.confirm("Restart")
    user.wait_for_toast("doing: ")
    user.run("%%sky\nprint('kept', 'kept' in globals())").get_by_text("kept False").wait_for()

    user.card("doing", "idle").wait_for()  # while something runs, their number stays
    card.get_by_role("button", name="Change the number of nodes").click()
    user.page.get_by_role("dialog").get_by_role("spinbutton").fill("0")
    user.confirm("Change")
    user.wait_for_toast("a whole number of 1 or more")
    card.get_by_role("button", name="Change the number of nodes").click()
    user.page.get_by_role("dialog").get_by_role("spinbutton").fill("3")
    user.page.screenshot(path=shots / "sidebar-scale.png")
    user.confirm("Change")
    card.get_by_text("idle · 3 nodes").wait_for()
    card.get_by_role("option").nth(2).wait_for()
    assert card.get_by_role("option").count() == 3

    user.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_role("button", name="Copy the line").click()
    user.wait_for_toast("Copied: %")
    assert "--nodes 3" in user.page.evaluate("navigator.clipboard.readText()")
    card.get_by_role("button", name="Attach to").click()
    until(lambda: "%sky attach doing" in user.cells())


def test_a_long_error_can_be_read_to_its_end(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "refused")
    user.run(f"{LOAD}\n%sky up --nodes 1 --cluster refused")
    said = f"the nodes {'do not answer ' * 12}and nothing was done: type `%sky restart` again."
    answer = {"status": 409, "json": {"message": said}}
    user.page.route("**/clusters/*/restart*", lambda route: route.fulfill(**answer))
    card = user.opened("refused")
    card.get_by_role("button", name="Restart all ranks").click()
    user.confirm("Restart")
    toast = user.page.locator(".Toastify__toast").filter(has_text="the nodes do not answer")
    show = toast.get_by_role("button", name="Show all")
    show.wait_for()
    user.page.screenshot(path=shots / "sidebar-refused.png")
    show.click()
    dialog = user.page.get_by_role("dialog")
    dialog.get_by_text("and nothing was done: type %sky restart again.").wait_for()
    assert dialog.locator("code").inner_text() == "%sky restart"
    user.page.screenshot(path=shots / "sidebar-refused-all.png")
    dialog.get_by_role("button", name="Close").click()

    answer["json"] = {"message": "type `%sky restart` again."}
    card.get_by_role("button", name="Restart all ranks").click()
    user.confirm("Restart")
    user.wait_for_toast("type “%sky restart” again.")


def test_a_new_cluster_starts_from_the_form(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "begin")
    user.sidebar.get_by_text("No cluster is running.").wait_for()
    assert user.sidebar.locator("code", has_text="%%sky --nodes 2").is_visible()
    user.sidebar.get_by_role("button", name="Load it").wait_for()
    user.page.screenshot(path=shots / "sidebar-empty.png")
    asked: list[Any] = []
    user.page.route("**/jupyter-sky/api/offers*", lambda route: asked.append(route))
    user.sidebar.get_by_role("button", name="New Cluster").click()
    form = user.sidebar.get_by_role("form", name="New cluster")
    form.get_by_text("Looking for nodes…").wait_for()
    start = form.get_by_role("button", name="Start")
    place = start.bounding_box()
    for route in asked:
        route.continue_()
    user.page.unroute_all(behavior="ignoreErrors")
    form.get_by_text("%sky up --nodes 2").wait_for()
    assert start.bounding_box() == place, "nothing moves under the pointer"
    assert user.flaws(".jsky-sidebar") == []
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        user.page.screenshot(path=shots / f"sidebar-form-{theme.lower()}.png")
    # What is typed counts, though Enter follows at once.
    form.get_by_role("spinbutton", name="Nodes").fill("3")
    user.page.keyboard.press("Enter")
    user.card("begin", "idle").get_by_text("3 nodes").wait_for()
    assert user.cells() == ["%load_ext jupyter_sky", "%sky up --nodes 3"]

    # The next one is a cluster of its own, as its button says.
    user.sidebar.get_by_role("button", name="New Cluster").click()
    form.get_by_text(re.compile(r"%sky up --nodes 2 --cluster begin-.*-2$")).wait_for()
    form.get_by_role("button", name="Start").click()
    second = user.card("begin", "idle").filter(has_text="2 nodes")
    second.hover()
    second.get_by_role("button", name="End this cluster").click()
    user.confirm("End")
    second.wait_for(state="detached")

    # In Lab's own places: the status bar, and the panel of what is running.
    user.page.get_by_role("button", name="1 cluster").wait_for()
    user.page.evaluate("() => void jupyterapp.commands.execute('running:show-panel')")
    item = user.page.locator(".jp-RunningSessions-item").filter(
        has_text=re.compile("^begin-.*idle")
    )
    item.hover()
    user.page.screenshot(path=shots / "sidebar-running.png")
    # Where they cannot be ended, it is said why.
    user.page.route("**/down*", lambda route: route.fulfill(status=409, json={"message": "busy."}))
    user.page.get_by_role("button", name="End All").click()
    user.confirm("End All")
    user.wait_for_toast("busy.")
    user.page.unroute("**/down*")
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    user.confirm("End")
    item.wait_for(state="detached")


def test_who_has_not_loaded_it_is_helped(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "unloaded")
    # Only a line of code loads it.
    user.page.evaluate(
        """() => {
          const { sharedModel } = jupyterapp.shell.currentWidget.content.model;
          const source = '# First, %load_ext jupyter_sky';
          sharedModel.insertCell(0, { cell_type: 'markdown', source });
          sharedModel.insertCell(1, { cell_type: 'code', source });
        }"""
    )
    user.run("%%sky --nodes 1 --plugin none\nprint('it runs')")
    user.page.locator(".jp-toastContainer").get_by_text("Load it and run the cell again").click()
    cell = user.page.locator(".jp-CodeCell").filter(has_text="%%sky")
    cell.locator("pre").get_by_text("it runs", exact=True).wait_for()
    assert user.cells()[:2] == ["# First, %load_ext jupyter_sky", "%load_ext jupyter_sky"]

    # It is said once, and no longer where it was loaded by hand or the notebook is closed.
    notice = user.page.locator(".jp-toastContainer").get_by_text("has not loaded jupyter_sky")
    notice.wait_for(state="detached")
    user.run("del get_ipython().magics_manager.magics['cell']['sky']")
    for _ in range(2):
        user.run("%%sky\nprint('it does not run')")
        notice.first.wait_for()
    user.run("%load_ext jupyter_sky")
    notice.first.wait_for(state="detached")
    user.run("%%sky\nprint('it does not run')")
    notice.wait_for()
    user.sidebar.get_by_role("button", name="New Cluster").click()
    user.sidebar.get_by_text("It starts in unloaded.ipynb.").wait_for()
    # A kernel that begins anew has not loaded it, as the sidebar says.
    load = user.sidebar.get_by_role("button", name="Load it")
    load.wait_for(state="hidden")
    user.restart_kernel()
    load.wait_for()
    user.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    user.page.evaluate("() => jupyterapp.shell.currentWidget.close()")
    notice.wait_for(state="detached")
    user.sidebar.get_by_text("It starts in a new notebook.").wait_for()

    # From the launcher, without a notebook.
    user.sidebar.get_by_role("button", name="Close").click()
    user.page.locator(".jp-LauncherCard", has_text="Cluster").click()
    user.sidebar.get_by_text("It starts in a new notebook.").wait_for()
    user.sidebar.get_by_role("button", name="Start").click()
    user.card("Untitled", "idle").wait_for()
    assert user.cells() == ["%load_ext jupyter_sky", "%sky up --nodes 2"]
    user.page.screenshot(path=shots / "sidebar-launcher.png")


def test_who_lacks_the_server_extension_is_told_what_to_type(open_notebook: Open) -> None:
    user = open_notebook("lab", "lacks")
    user.page.route("**/jupyter-sky/api/**", lambda route: route.fulfill(status=404, body="no"))
    user.do("refresh")
    said = user.sidebar.get_by_role("status").filter(has_text="has no jupyter_sky")
    assert "pip install jupyter-sky" in said.inner_text()


def test_a_terminal_of_a_node_and_a_link_to_its_page(open_notebook: Open, tmp_path: Path) -> None:
    user = open_notebook("lab", "terminals")
    user.run(f"{LOAD}\n%env SHELL=/bin/sh")
    end = tmp_path / "end"
    cell = user.run(
        "%%sky --nodes 2 --cluster terminals --background\nimport os, time\n"
        f"while not os.path.exists({str(end)!r}): time.sleep(0.05)"
    )
    user.run("%sky forward 6006 --rank 1")
    card = user.opened("terminals")
    card.get_by_role("link", name="Port 6006 of rank 1").wait_for()
    link = user.page.locator(".jsky-in-cell").get_by_role("link", name="Port 6006 of rank 1")
    assert "/jupyter-sky/forward/" in link.get_attribute("href")

    card.get_by_role("option", name="rank 1,").click()
    card.get_by_role("button", name="Open a terminal on the node of the selected rank").click()
    terminal = user.page.locator(".jp-Terminal-body")
    terminal.wait_for()
    terminal.click()
    said = tmp_path / "said"
    user.page.keyboard.type(f"echo $PPID > {said}")
    user.page.keyboard.press("Enter")
    until(lambda: said.exists() and said.read_text())
    assert "jupyter_sky.node" in " ".join(psutil.Process(int(said.read_text())).cmdline())
    user.page.keyboard.type("exit")
    user.page.keyboard.press("Enter")
    terminal.wait_for(state="detached")
    end.touch()
    # A run that is over says nothing of pages: the sidebar does.
    link.wait_for(state="detached")
    assert cell is not None
