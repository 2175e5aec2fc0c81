"""A disk that is full, and clients that do not read: nobody but them has trouble."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.conftest import Cells
from tests.faults.limits import full_disk
from tests.faults.parts import agent_of, ended_in

SHOW = (
    "from IPython.display import display\n"
    "for n in range({}): display({{'image/png': bytes([n]) * 150_000}}, raw=True)"
)


def displayed(cells: Cells) -> list[int]:
    return [event.data["image/png"][0] for event in cells.events]


def test_a_slow_client_and_a_full_disk_cost_no_rank(new, raw) -> None:
    cells = new(nodes=2, framework=False)
    before = cells.ask("__import__('os').getpid()")
    cells.events.clear()
    slow = raw(cells, since=0, visits=True)
    with full_disk(agent_of(cells), 500_123):
        said: list[str] = []
        run = cells.start(SHOW.format(200))
        run.follow(cells.events.append, notice=said.append)
        run.values()
        slow.give_sign()
        shown = displayed(cells)
        # This process reads, but on a busy machine not always as fast as it is shown something.
        assert shown == sorted(set(shown)) and shown[-1] == 199
        skipped = sum(event.skipped for event in cells.events)
        lost = sum(int(text.split()[0]) for text in said if "of output of" in text)
        assert len(shown) + skipped + lost == 200
        cells.run("print('after')")
        slow.give_sign()
        assert cells.text() == "after\n"
    assert cells.ask("__import__('os').getpid()") == before
    last = raw(cells).welcome()["last"]
    seen = []
    for message in slow.receive():
        seen.append(message)
        if message.get("n") == last:
            break
    images = [each["data"]["image/png"] for each in seen if each.get("event") == "display"]
    assert all(image == image[:1] * 150_000 for image in images)
    lost = sum(each["shown"] for each in seen if each.get("event") == "lost")
    assert lost
    assert len(images) + lost == 200
    # What happened to runs is never lost.
    ends = [run for each in seen for run in ended_in(each)]
    assert len(ends) == 2 * 4


def test_what_a_full_disk_keeps_out_of_a_log_is_shown_and_the_log_says_so(new) -> None:
    cells = new(nodes=1, framework=False)
    with full_disk(agent_of(cells), 40_000):
        cells.run("for n in range(10_000): print('line', n)")
        assert cells.text().startswith("line 0\n")
        assert cells.text().endswith("line 9999\n")
    cells.run("print('there is room again')")
    text = cells.cluster.log(0, tail=1_000_000).data.decode()
    assert "are missing here: there was no room on the disk" in text
    assert text.endswith("there is room again\n")


def test_what_is_displayed_has_a_limit_and_ends_with_the_last(new) -> None:
    cells = new(nodes=1, framework=False)
    cells.run(
        "from IPython.display import display\n"
        "for n in range(5000): display({'text/plain': f'display {n}'}, raw=True)\n"
        "'the value'"
    )
    *shown, last, value = cells.events
    assert len(shown) < 2000
    assert (last.data["text/plain"], value.data["text/plain"]) == ("display 4999", "'the value'")
    assert len(cells.events) + sum(event.skipped for event in cells.events) == 5001
    assert "display 2500\n" in cells.cluster.log(0, tail=10_000).data.decode()


def test_what_is_displayed_after_a_run_is_in_the_log_alone(new, tmp_path: Path) -> None:
    cells = new(nodes=1, framework=False)
    cells.namespace["go"] = str(tmp_path / "go")
    cells.run(
        "import os, threading, time\nfrom IPython.display import display\n"
        "def later():\n    while not os.path.exists(go): time.sleep(0.01)\n    display('late')\n"
        "threading.Thread(target=later).start()",
        names=["go"],
    )
    (tmp_path / "go").touch()
    while cells.cluster.log(0, tail=1).data != b"'late'\n":
        time.sleep(0.01)
    cells.run("pass")
    assert cells.events == []
