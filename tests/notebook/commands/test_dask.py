"""``%sky dask``, typed into a notebook."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_workers_elsewhere_have_the_users_own_modules(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they do not see the notebook's files, as on hosts; and as they were edited."""
    (tmp_path / "my_words.py").write_text("from my_more_words import N\ndef word(_): return N")
    (tmp_path / "my_more_words.py").write_text("N = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    notebook.run(
        "import jupyter_sky as sky, joblib, my_words\n"
        "provider = sky.Local(shares_files=False)\n"
        "pool = sky.ComputePool(nodes=2, provider=provider, plugins=[sky.plugins.sklearn()])\n"
        "pool.__enter__()"
    )
    try:
        # joblib first: its tasks are made in Dask's own thread.
        many = "joblib.Parallel(n_jobs=-1)(joblib.delayed(my_words.word)(n) for n in range(9))"
        notebook.run(f"many = {many}\nfirst = pool.dask().submit(my_words.word, 0).result()")
        assert notebook.namespace["many"] == [1] * 9
        assert notebook.namespace["first"] == 1
        (tmp_path / "my_more_words.py").write_text("N = 1000\n")
        notebook.run(f"many = {many}")
        assert notebook.namespace["many"] == [1000] * 9  # by a module that was not edited
        (tmp_path / "my_words.py").write_text("def word(_): return 'edited'")
        notebook.run(f"many = {many}")
        assert notebook.namespace["many"] == ["edited"] * 9
        (tmp_path / "my_words.py").write_text("def word(_): return 'edited again'")
        notebook.run("futures = pool.dask().map(my_words.word, range(9), pure=False)")
        notebook.run("again = pool.dask().gather(futures)")
        assert notebook.namespace["again"] == ["edited again"] * 9
    finally:
        notebook.run("pool.__exit__(None, None, None)")
