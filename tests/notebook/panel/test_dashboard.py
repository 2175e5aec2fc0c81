"""Dask's dashboard in the browser: through Jupyter's server, where a link leads to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.installed import skip_without
from tests.labextension.lab import home, lab, pages, server
from tests.notebook.panel.jupyter import NotebookUser, Pages, Server

__all__ = ["home", "lab", "pages", "server"]

skip_without("jupyterlab", "distributed", "bokeh")

SHOWN = "window.Bokeh?.documents[0]?.roots().length > 0"


def test_a_link_of_client_and_sidebar_leads_to_what_dask_does(
    pages: Pages, server: Server, shots: Path
) -> None:
    user = NotebookUser(pages, server, "lab", "dask")
    try:
        follow_the_links(user, shots)
    finally:
        user.close()


def follow_the_links(user: NotebookUser, shots: Path) -> None:
    user.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
    user.run("%%sky --nodes 1 --cluster dashed\npass")
    cell = user.run("client = %sky dask\nclient")
    link = cell.get_by_role("link", name="/dask/status")
    assert link.count() == 1
    with user.page.expect_popup() as opened:
        link.click()
    dashboard = opened.value
    dashboard.set_default_timeout(100_000)  # as of the notebook's page
    sockets: list[Any] = []
    dashboard.on("websocket", lambda socket: sockets.append(socket))
    dashboard.reload()
    dashboard.wait_for_function(SHOWN)
    assert sockets
    assert all("/jupyter-sky/forward/" in socket.url for socket in sockets)
    assert dashboard.title() == "Dask: Status"
    # It is alive: what comes over the WebSocket changes what is shown.
    user.run("kept = client.map(lambda at: at, range(50))\nclient.gather(kept)\nNone")
    dashboard.wait_for_function(
        "[...Bokeh.documents[0].all_models.values()].some("
        "(each) => each.type === 'ColumnDataSource' && [...(each.data.all ?? [])].includes(50))"
    )
    dashboard.screenshot(path=shots / "dashboard.png")
    dashboard.close()
    user.page.keyboard.press("Escape")
    user.page.evaluate("() => window.jupyterapp?.commands.execute('jupyter-sky:show')")
    page = user.page.locator(".jsky-page")
    page.wait_for()
    assert page.get_attribute("href").endswith("/dask/status")
    user.page.screenshot(path=shots / "dashboard-link.png")
    with user.page.expect_popup() as opened:
        page.click()
    opened.value.set_default_timeout(100_000)
    opened.value.wait_for_function(SHOWN)
    opened.value.close()
    user.run("%sky down dashed")
