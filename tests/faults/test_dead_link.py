"""A notebook that is gone, and whose link still counts: what it missed is not taken for seen."""

from __future__ import annotations

import time

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.providers.local import Local
from tests.cluster.conftest import Cells


def attach(name: str) -> Cells:
    row = registry.find(name)
    assert row is not None
    cluster = Cluster.attach(row, Local(), RuntimeEnv(life={}), timeouts=Timeouts(stop=20))
    assert cluster is not None
    return Cells(cluster)


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
    ends = (each for each in looker.receive() if each.get("event") == "rank_done")
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
