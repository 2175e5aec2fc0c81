"""A page that is open for long, mostly in the background, where browsers draw nothing."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from typing import Any

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser
from tests.notebook.panel.samples import changed, snapshot

skip_without("jupyterlab")

Open = Callable[..., SidebarUser]

UP = "%load_ext jupyter_sky\n%config Sky.plugin = 'none'\n%sky up --nodes 1 --cluster long"
DRAW_LATER = """() => {
  const { parse } = JSON;
  window.chunks = 0;
  JSON.parse = (text) => {
    chunks += text.startsWith('{"entries"');
    return parse(text);
  };
  const draws = [];
  const soon = window.requestAnimationFrame;
  window.requestAnimationFrame = (draw) => draws.push(draw);
  window.drawAll = () => {
    window.requestAnimationFrame = soon;
    draws.forEach((draw) => soon(draw));
  };
}"""
TELL = """({ snapshot, runs }) => {
  for (let run = 0; run < runs; run++) {
    const detail = structuredClone(snapshot);
    detail.run.id = `run ${run}`;
    detail.ranks.forEach((rank) => (rank.line = `${run} ${rank.rank} `.repeat(40)));
    document.dispatchEvent(new CustomEvent('jupyter-sky:snapshot', { detail }));
  }
}"""

LIVE = re.compile("/jupyter-sky/api/clusters/.*/live/")
LOG = re.compile("/live/0[?]tail=2000$")  # the card of the cluster asks for fewer lines

CHUNKS, LINES, WIDE = 100, 2000, 100


def heap(page: Any) -> int:
    """Bytes that a page uses."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return int(used)


def chunk(text: str) -> str:
    entry = {"rank": 0, "time": 0, "stream": "stdout", "text": text, "run": None, "title": ""}
    return json.dumps({"entries": [entry], "end": None})


def test_a_log_that_is_not_drawn_keeps_its_last_lines(open_notebook: Open) -> None:
    user = open_notebook("lab", "long")
    page = user.page
    user.run(UP)
    sockets: list[Any] = []
    page.route_web_socket(LOG, lambda socket: sockets.append(socket))
    user.load_again()  # what is loaded already keeps the WebSockets that it knows
    user.do("show")
    user.opened("long").get_by_role("button", name="Open the log").click()
    page.get_by_role("log", name="Log of rank 0").wait_for()
    while not sockets:
        page.wait_for_timeout(100)
    before = heap(page)
    page.evaluate(DRAW_LATER)
    for at in range(CHUNKS):
        lines = (f"line {at * LINES + line} ".ljust(WIDE, "x") for line in range(LINES))
        sockets[-1].send(chunk("\n".join(lines) + "\n"))
    sockets[-1].send(chunk("the last line\n"))
    page.wait_for_function("count => chunks === count", arg=CHUNKS + 1, polling=100)
    assert heap(page) - before < CHUNKS * LINES * WIDE / 2
    page.evaluate("() => drawAll()")
    page.get_by_role("tab", name="Log of long").click()  # the notebook may have come before it
    page.get_by_role("log", name="Log of rank 0").get_by_text("the last line").wait_for()
    page.unroute_all()
    user.load_again()


def test_runs_that_are_over_are_forgotten(open_notebook: Open) -> None:
    user = open_notebook("lab", "many-runs")
    before = heap(user.page)
    ended = changed(snapshot(32, 8, "H100"), run={"state": "ok"})
    user.page.evaluate(TELL, {"snapshot": ended, "runs": 600})
    grown = heap(user.page) - before
    assert grown < 20_000_000


def test_a_server_that_refuses_a_log_is_asked_less_and_less_often(open_notebook: Open) -> None:
    user = open_notebook("lab", "refused")
    user.run(UP)
    times: list[float] = []

    def refuse(socket: Any) -> None:
        times.append(time.monotonic())
        socket.close()

    user.page.route_web_socket(LIVE, refuse)
    user.load_again()
    user.do("show")
    user.opened("long")
    while len(times) < 4:
        user.page.wait_for_timeout(100)  # Playwright looks at nothing meanwhile
    first, *_, last = (later - at for at, later in itertools.pairwise(times))
    assert last > 2 * first
