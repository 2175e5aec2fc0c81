"""``%sky scale``, typed into a notebook."""

from __future__ import annotations

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.notebook.conftest import Notebook


@pytest.fixture
def two(notebook: Notebook) -> Notebook:
    notebook.run("%%sky --nodes 2\nkept = 1")
    return notebook


def counts(notebook: Notebook) -> list[str]:
    notebook.run("%%sky --gather counts\nimport os\ncounts = os.environ['SKYPILOT_NUM_NODES']")
    return notebook.namespace["counts"]


def test_more_nodes_and_fewer(two: Notebook) -> None:
    two.run("%sky scale 4")
    assert "4 local nodes, 4 ranks on CPU, in " in two.stderr
    assert counts(two) == ["4"] * 4
    assert "rank 3  node 3  CPU  idle" in two.run("%sky status")
    two.run("%%sky --out kept --ranks 0-1\nkept += 1")
    assert two.namespace["kept"] == 2
    two.run("%sky scale 1")
    assert "1 local node, 1 rank on CPU" in two.stderr
    assert counts(two) == ["1"]


def test_the_next_cluster_and_the_line_that_makes_it_have_the_new_size(two: Notebook) -> None:
    two.run("%sky scale 3")
    [row] = registry.rows()
    assert "--nodes 3" in row.spec["line"]
    two.run("%%sky --nodes 3\npass")


def test_a_cell_that_trains_runs_on_one_rank_as_on_two(notebook: Notebook) -> None:
    count = (
        "import os, torch, torch.distributed as dist\ntotal = torch.ones(1)\n"
        "dist.all_reduce(total)\nprint(total.item(), os.environ['WORLD_SIZE'])"
    )
    assert "1.0 1" in notebook.run(f"%%sky --nodes 1 --plugin torch\n{count}")
    notebook.run("%sky scale 2")
    assert "2.0 2" in notebook.run(f"%%sky\n{count}")
    notebook.run("%sky scale 1")
    assert "1.0 1" in notebook.run(f"%%sky\n{count}")


REFUSED = {
    "%sky scale": "as in `%sky scale 8`; it has 2 now",
    "%sky scale 0": "`%sky down` ends the cluster",
    "%sky scale many": '"many" is not one',
    "%sky scale 2": "already has 2 nodes",
    "%sky scale 3 --hosts gpu1": "as in `%sky scale 3`",
    "%sky scale 3 --max-price 5": "--max-price does not apply to local nodes: leave it out.",
    "%sky scale 3 --provider aws": "`%sky scale -h`",
    "%%sky --nodes 3\npass": "`%sky scale 3` to change it",
}


def test_what_cannot_be_is_one_line_and_changes_nothing(two: Notebook) -> None:
    for line, instead in REFUSED.items():
        with pytest.raises(UsageError) as caught:
            two.run(line)
        assert instead in str(caught.value) and "\n" not in str(caught.value)
        assert counts(two) == ["2", "2"]
    two.run("%%sky --background\nimport time\nwhile True: time.sleep(0.01)")
    with pytest.raises(UsageError, match="is busy"):
        two.run("%sky scale 3")
    two.run("%sky interrupt")


def test_a_cluster_that_another_kernel_has_scaled(two: Notebook) -> None:
    [row] = registry.rows()
    _, runtime_env = assemble(ClusterSpec(name=row.name), [])
    other = Cluster.attach(row, Local(), runtime_env)
    other.scale(3)
    other.close()
    assert counts(two) == ["3"] * 3


def test_a_restarted_kernel_knows_what_new_nodes_need(notebook: Notebook) -> None:
    notebook.run("%config Sky.plugin = 'torch'")
    notebook.run("%sky up --nodes 1 --pip msgpack")
    [row] = registry.rows()
    session = Session(notebook.shell, Sky())
    found = session.find(row.name)
    try:
        assert "msgpack" in found.packages.added
        assert any(each.startswith("torch") for each in found.spec.image.pip)
    finally:
        session.close()
