"""A notebook that is gone, and whose link still counts: what it missed is not taken for seen."""

from __future__ import annotations

import time

from tests.faults.parts import attach, ended_in


def test_a_run_that_ends_while_a_dead_link_counts_is_offered_once(new, raw, tmp_path) -> None:
    cells = new(nodes=2, framework=False)
    cells.namespace["go"] = str(tmp_path / "go")
    cells.start(
        "import os, time\nwhile not os.path.exists(go): time.sleep(0.01)\nprint('the end')",
        names=["go"],
    )
    while not all(rank["run"] for rank in raw(cells, visits=True).welcome()["ranks"]):
        time.sleep(0.01)
    # The link of a laptop that was closed: it is there, takes what comes, and nobody reads it.
    raw(cells, since=0).welcome()
    cells.cluster.close()
    (tmp_path / "go").touch()
    looker = raw(cells, since=0, visits=True)
    ends = (run for each in looker.receive() for run in ended_in(each))
    next(ends), next(ends)

    again = attach(cells.cluster.name)
    run = again.cluster.pop_unseen_run()
    assert run is not None
    run.follow(again.events.append)
    assert again.text() == "the end\n"
    again.cluster.close()

    once_more = attach(cells.cluster.name)
    assert once_more.cluster.pop_unseen_run() is None
    once_more.cluster.down()
