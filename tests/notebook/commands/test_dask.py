"""``%sky dask``, typed into a notebook."""

from __future__ import annotations

import os

from tests.installed import skip_without
from tests.notebook.conftest import Notebook

skip_without("distributed")


def test_a_cluster_of_cells_has_dask_for_the_notebook_and_again_after_it(
    notebook: Notebook,
) -> None:
    # Without the plugin, Dask is started when it is asked for.
    notebook.run("%%sky --nodes 1\nkept = 1")
    notebook.run("client = %sky dask\nsaid = client.submit(sum, [1, 2]).result()")
    assert notebook.namespace["said"] == 3
    notebook.run("%%sky --out kept\nkept += 1")
    assert notebook.namespace["kept"] == 2
    notebook.run("%sky down")
    assert notebook.namespace["client"].status == "closed"
    # With it, what the notebook does in parallel is done on the cluster, until that ends.
    notebook.run("%%sky --nodes 2 --plugin joblib\npass")
    notebook.run(
        "import joblib, os\n"
        "[there] = joblib.Parallel(n_jobs=-1)([joblib.delayed(os.getpid)()])\n"
        "client = %sky dask"
    )
    assert notebook.namespace["there"] in notebook.namespace["client"].run(os.getpid).values()
    notebook.run("%sky down")
    notebook.run("[here] = joblib.Parallel(n_jobs=1)([joblib.delayed(os.getpid)()])")
    assert notebook.namespace["here"] == os.getpid()
