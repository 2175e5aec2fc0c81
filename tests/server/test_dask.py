"""Dask of one cluster in two notebooks."""

from __future__ import annotations

from collections.abc import Callable

from tests.installed import skip_without
from tests.server.jupyter import Kernel, Server

skip_without("distributed")


def test_a_second_notebook_uses_it_and_goes_on_without_the_first(
    server: Server, opened: Callable[[str], Kernel]
) -> None:
    first, second = opened("first.ipynb"), opened("second.ipynb")
    first.run("%%sky --nodes 2 --cluster both --plugin joblib\npass")
    first.run("import os\nclient = %sky dask\npids = sorted(client.run(os.getpid).values())")
    second.run("%sky attach both")
    second.run("import os\nclient = %sky dask\npids = sorted(client.run(os.getpid).values())")
    assert first.run("print(pids)").stdout == second.run("print(pids)").stdout
    # The cluster has joblib, so the second notebook's is on it as well.
    second.run("import joblib\nassert joblib.effective_n_jobs(-1) == 2")
    link = second.run("print(client.dashboard_link)").stdout.strip()
    path = link.partition("/user/ada%20l/")[2]
    assert server.fetch(path).status == 200
    assert server.fetch(f"api/kernels/{first.id}", method="DELETE").status == 204
    assert second.run("print(client.submit(sum, [1, 2]).result())").stdout == "3\n"
    # The first one's way there is gone with its kernel.
    assert server.fetch(path).status == 200
    second.run("%sky down both")
    assert server.fetch(path).status == 503
