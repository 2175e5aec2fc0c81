"""A notebook and its cluster: whose it is, and what a restarted kernel finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from jupyter_sky.cluster.inventory import registry
from tests.node_processes import processes_of_node
from tests.notebook.kernels import PATIENCE, LiveNotebook
from tests.waiting import until


def clusters(prefix: str) -> list[str]:
    """Return the names of the clusters of notebooks whose name begins like this."""
    return sorted(row.name for row in registry.rows() if row.name.startswith(prefix))


def test_a_restarted_kernel_finds_its_cluster_with_its_variables(opened) -> None:
    notebook = opened("restarted")
    notebook.succeed(
        "%%sky --nodes 2\nimport torch.distributed as dist\nkept = dist.get_rank() * 10"
    )
    [name] = clusters("restarted-")
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    cell = notebook.succeed("%%sky --gather found\nfound = kept")
    assert notebook.value("found") == [0, 10]
    [line] = cell.shown
    assert line.startswith(f"{name}: 2 local nodes")
    assert line.endswith("still up: connected again")
    # It is the same group, and Stop, errors and names go on as before.
    notebook.succeed(
        "%%sky --gather total\nimport torch\nt = torch.ones(1)\ndist.all_reduce(t)\n"
        "total = t.item()"
    )
    assert notebook.value("total") == [2.0, 2.0]


def test_two_notebooks_have_two_clusters(opened) -> None:
    one, two = opened("one"), opened("two")
    for notebook, value in ((one, 1), (two, 2)):
        notebook.succeed(
            "%%sky --nodes 2 --out total\nimport torch, torch.distributed as dist\n"
            f"mine = {value}\nt = torch.ones(1) * mine\ndist.all_reduce(t)\ntotal = t.item()"
        )
    assert (one.value("total"), two.value("total")) == (2.0, 4.0)
    assert len(clusters("one-")) == len(clusters("two-")) == 1
    one.succeed("%sky down")
    assert not clusters("one-")
    assert two.succeed("%%sky\nprint(mine)").stdout == "2\n"


def test_notebooks_of_one_name_in_two_folders_have_two_clusters(opened, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    here, there = opened("same"), opened("other/same")
    here.succeed("%%sky --nodes 1 --plugin none\nmine = 1")
    there.succeed("%%sky --nodes 1 --plugin none\nmine = 2")
    assert len(clusters("same-")) == 2
    assert here.succeed("%%sky\nprint(mine)").stdout == "1\n"


def test_a_notebook_can_have_several_clusters(opened) -> None:
    notebook = opened("several")
    notebook.succeed("%%sky --nodes 1 --plugin none\nmine = 'own'")
    notebook.succeed("%%sky --cluster extra --nodes 2 --plugin none\nmine = 'extra'")
    assert notebook.succeed("%%sky\nprint(mine)").stdout == "extra\n"
    notebook.succeed("%sky down extra")
    assert notebook.succeed("%%sky\nprint(mine)").stdout == "own\n"


def test_the_extension_can_be_loaded_twice(pair: LiveNotebook) -> None:
    pair.succeed("%%sky\nhere = rank")
    cell = pair.succeed("%load_ext jupyter_sky")
    assert "already loaded" in cell.stdout
    pair.succeed("%reload_ext jupyter_sky")
    assert pair.succeed("%%sky\nprint(here)").stdout == "0\n"


@pytest.mark.parametrize("is_over", [False, True])
def test_a_background_run_that_the_extension_is_unloaded_under_says_so_and_goes_on(
    opened: Callable[..., LiveNotebook], tmp_path: Path, is_over: bool
) -> None:
    notebook, go, end = opened("reloaded"), tmp_path / "go", tmp_path / "end"
    notebook.succeed(
        "%%sky --nodes 1 --plugin none --background --out x\nimport os, pathlib, time\n"
        f"print('here', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"x = 5\npathlib.Path({str(end)!r}).touch()"
    )
    notebook.succeed("begun = _\nwhile 'here' not in begun.output: pass")
    notebook.succeed("%%sky --background\npass")
    notebook.succeed("waits = _")
    notebook.succeed("%unload_ext jupyter_sky")
    [name] = clusters("reloaded-")
    for cell in ("begun.result()", "waits.result()", "await begun"):
        said = notebook.run(cell).traceback
        assert "SkyError: jupyter_sky was unloaded: a run that has begun goes on" in said
        assert f"`%sky attach {name}` shows it; one that waited for its turn does not begin" in said
    if is_over:
        go.touch()
        until(end.exists)
    attached = notebook.start(f"%load_ext jupyter_sky\n%sky attach {name}")
    if not is_over:
        notebook.until(attached, lambda cell: "here" in cell.stdout)
        go.touch()
    assert "here" in notebook.finish(attached).stdout
    assert "did not run" not in str(attached.shown)
    assert notebook.value("x") == 5


def test_a_cluster_whose_agent_is_killed_is_lost_in_one_line_and_started_anew(opened) -> None:
    notebook = opened("killed")
    cell = notebook.start(
        "%%sky --nodes 2 --plugin none\nimport time\nprint('started')\nwhile True: time.sleep(0.01)"
    )
    notebook.until(cell, lambda cell: cell.stdout)
    [name] = clusters("killed-")
    agent = psutil.Process(registry.find(name).machines[0]["pid"])
    everything = processes_of_node(agent)
    agent.kill()
    notebook.finish(cell)
    assert cell.error["ename"] == "ClusterLost"
    assert "Run the cell again to start a new one." in cell.sentence
    assert psutil.wait_procs(everything, timeout=PATIENCE)[1] == []
    assert notebook.run("%sky logs").sentence.endswith(
        f"{name} is gone, with the variables of its ranks: `%sky up --cluster {name}` starts it "
        "again as it was."
    )
    assert notebook.succeed("%%sky\nprint('again')").stdout == "again\n"
    assert clusters("killed-") == [name]
