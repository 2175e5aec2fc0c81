"""Dask on a cluster: its client, joblib and scikit-learn over it, and what becomes of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.plugins.dask_cluster import progress
from jupyter_sky.plugins.dask_cluster.deployment import client_of
from tests.installed import skip_without
from tests.waiting import PATIENCE, until

skip_without("distributed")


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.dask(), sky.plugins.sklearn()]) as made:
        yield made


def workers(pool: sky.ComputePool) -> dict[str, int]:
    """The process of each worker, by its name; none while nobody leads to the scheduler.

    The client notices that the scheduler has gone when it asks it for something, and finds the next
    one by itself then.
    """
    try:
        names = pool.dask().scheduler_info(n_workers=-1)["workers"]
        found = pool.dask().run(os.getpid, on_error="return")
    except OSError:
        return {}
    return {
        names[address]["name"]: pid
        for address, pid in found.items()
        if address in names and isinstance(pid, int)
    }


def dask_processes(pool: sky.ComputePool) -> list[psutil.Process]:
    """The scheduler and the workers of a pool."""
    ranks = [psutil.Process(rank.pid) for rank in pool.cluster.state.ranks]
    return [each for rank in ranks for each in rank.children()]


def parent(_: int) -> int:
    return os.getppid()


def test_a_worker_beside_each_rank(pool: sky.ComputePool) -> None:
    assert sorted(workers(pool)) == ["rank-0", "rank-1"]
    ranks = {rank.pid for rank in pool.cluster.state.ranks}
    assert set(pool.dask().run(os.getppid).values()) == ranks
    assert pool.dask().gather(pool.dask().map(lambda number: number**2, range(5))) == [
        0, 1, 4, 9, 16,
    ]  # fmt: skip


def test_joblib_uses_the_whole_cluster(pool: sky.ComputePool) -> None:
    import joblib

    assert joblib.effective_n_jobs(-1) == 2
    done = joblib.Parallel(n_jobs=-1, batch_size=1)(joblib.delayed(parent)(i) for i in range(40))
    assert set(done) == {rank.pid for rank in pool.cluster.state.ranks}


def ranks_used() -> set[int]:
    """The processes whose children joblib uses."""
    import joblib

    calls = (joblib.delayed(parent)(at) for at in range(40))
    return set(joblib.Parallel(n_jobs=-1, batch_size=1)(calls))


def test_of_two_clusters_joblib_uses_the_last_and_each_can_end_first(
    pool: sky.ComputePool,
) -> None:
    from joblib import parallel

    def ranks(of: sky.ComputePool) -> set[int | None]:
        return {rank.pid for rank in of.cluster.state.ranks}

    counted = parallel.Parallel.__call__
    for first_to_end in (0, 1):
        two = [sky.ComputePool(nodes=1, plugins=[sky.plugins.joblib()]) for _ in range(2)]
        with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
            pools = [
                stack.enter_context(each) for stack, each in zip((one, other), two, strict=True)
            ]
            assert ranks_used() == ranks(pools[1])
            (one, other)[first_to_end].close()
            assert ranks_used() == ranks(pools[1 - first_to_end])
        assert ranks_used() == ranks(pool)
    assert parallel.Parallel.__call__ is counted


def test_the_worker_of_a_single_node_is_used_as_well(pool: sky.ComputePool) -> None:
    with sky.ComputePool(nodes=1, plugins=[sky.plugins.joblib()]) as alone:
        assert ranks_used() == {rank.pid for rank in alone.cluster.state.ranks}


def test_threads_use_it_as_well_and_one_job_stays_here(pool: sky.ComputePool) -> None:
    import joblib

    found: list[set[int]] = []

    def work() -> None:
        calls = (joblib.delayed(parent)(at) for at in range(40))
        found.append(set(joblib.Parallel(n_jobs=-1, batch_size=1)(calls)))

    # Two at once, beside each other: each has a backend of its own.
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{rank.pid for rank in pool.cluster.state.ranks}] * 2
    assert joblib.Parallel(n_jobs=1)([joblib.delayed(os.getpid)()]) == [os.getpid()]
    with joblib.parallel_config(backend="threading"):
        assert joblib.Parallel(n_jobs=2)([joblib.delayed(os.getpid)()]) == [os.getpid()]


def shown(pool: sky.ComputePool, seen: list[tuple[str, float | None]]) -> None:
    """Keep what is shown of the cluster's progress."""
    run = pool.cluster.snapshot()["run"]
    if run and run["title"] == "tasks on Dask" and (progress := run["progress"]):
        seen.append((progress["count"], progress["left"]))


def test_how_far_it_is_is_shown(pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib
    from distributed import Event

    # Calls are counted as long as that is quick, which nothing is where a process is paused.
    monkeypatch.setattr(progress, "_COUNTED_WITHIN", PATIENCE)
    seen: list[tuple[str, float | None]] = []
    pool.cluster.listen(lambda: shown(pool, seen))

    def wait(at: int) -> int:
        if at == 20:
            Event("go on").wait()
        return at

    def count() -> None:
        until(lambda: any(count.endswith("/40") for count, _ in seen))
        Event("go on", client=pool.dask()).set()

    releasing = threading.Thread(target=count)
    releasing.start()
    # A generator, whose length nobody knows before.
    calls = (joblib.delayed(wait)(at) for at in range(40))
    assert joblib.Parallel(n_jobs=-1, batch_size=1)(calls) == list(range(40))
    releasing.join()
    assert any(left is not None and left > 0 for _, left in seen)
    until(lambda: (pool.cluster.snapshot()["run"] or {}).get("title") != "tasks on Dask")
    # Tasks that joblib has nothing to do with are counted by the scheduler.
    seen.clear()
    Event("go on", client=pool.dask()).clear()
    futures = pool.dask().map(wait, range(15, 28), pure=False)
    try:
        until(lambda: any(count.endswith("/13") for count, _ in seen))
    finally:
        Event("go on", client=pool.dask()).set()  # the workers are for other tests as well
    assert pool.dask().gather(futures) == list(range(15, 28))
    until(lambda: (pool.cluster.snapshot()["run"] or {}).get("title") != "tasks on Dask")


def test_stop_cancels_what_workers_have_not_begun(pool: sky.ComputePool, tmp_path: Path) -> None:
    import joblib
    from distributed import Event

    def begin(at: int) -> int:
        (tmp_path / str(at)).touch()
        Event("go on").wait()
        return at

    def stop() -> None:
        until(lambda: (pool.cluster.snapshot()["run"] or {}).get("title") == "tasks on Dask")
        assert pool.cluster.interrupt()

    Event("go on", client=pool.dask()).clear()
    stopping = threading.Thread(target=stop)
    stopping.start()
    try:
        with pytest.raises(concurrent.futures.CancelledError):
            joblib.Parallel(n_jobs=-1, batch_size=1)(joblib.delayed(begin)(at) for at in range(40))
    finally:
        Event("go on", client=pool.dask()).set()
    stopping.join()
    assert joblib.Parallel(n_jobs=-1)([joblib.delayed(int)(7)]) == [7]
    assert len(list(tmp_path.iterdir())) < 40


def test_a_grid_search_finds_what_it_finds_here(pool: sky.ComputePool) -> None:
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    data, target = load_iris(return_X_y=True)
    grid = {"C": [0.01, 0.1, 1.0]}
    model = LogisticRegression(max_iter=500)
    there = GridSearchCV(model, grid, n_jobs=-1, cv=3).fit(data, target)
    with joblib.parallel_config(backend="sequential"):
        here = GridSearchCV(model, grid, cv=3).fit(data, target)
    assert there.best_params_ == here.best_params_
    assert there.best_score_ == pytest.approx(here.best_score_)


def received(dask_worker: Any) -> int:
    """The bytes of data that a worker has from others."""
    return sum(each["total"] for each in dask_worker.transfer_incoming_log)


def use(data: Any, at: int) -> float:
    time.sleep(0.02)
    return float(data[at])


def test_data_is_sent_once_to_each_worker(
    pool: sky.ComputePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import joblib
    import numpy as np
    from distributed.comm.tcp import TCP

    sent: list[int] = []
    write = TCP.write

    async def counted(self: Any, *args: Any, **kwargs: Any) -> int:
        sent.append(await write(self, *args, **kwargs))
        return sent[-1]

    data = np.arange(2_000_000, dtype=np.float64)
    monkeypatch.setattr(TCP, "write", counted)
    before = pool.dask().run(received)
    # It takes longer than the time after which Dask looks for copies that nobody waits for.
    found = joblib.Parallel(n_jobs=-1, batch_size=1)(
        joblib.delayed(use)(data, at) for at in range(300)
    )
    assert found == list(range(300))
    after = pool.dask().run(received)
    assert data.nbytes <= sum(sent) < 1.2 * data.nbytes
    got = [after[worker] - before[worker] for worker in after]
    # One has it from the notebook, the other from that one.
    assert max(got) < 1.2 * data.nbytes
    assert sum(got) >= data.nbytes


def test_an_error_of_a_task_is_raised_here(pool: sky.ComputePool) -> None:
    with pytest.raises(ZeroDivisionError):
        pool.dask().submit(lambda: 1 / 0).result()


def test_nobody_else_is_let_in(pool: sky.ComputePool) -> None:
    listening = [
        (each, place.laddr)
        for each in dask_processes(pool)
        for place in each.net_connections("inet")
        if place.status == psutil.CONN_LISTEN
    ]
    # One port each, and one for the dashboard, at the cluster's address, which is this computer's.
    assert len(dask_processes(pool)) == 3
    assert len(listening) == 4
    for _, (addr, port) in listening:
        assert addr == "127.0.0.1"
        assert not answered(port)
    secrets = ("PRIVATE KEY", "CERTIFICATE")
    for each, _ in listening:
        told = " ".join([*each.cmdline(), *each.environ().values()])
        assert not any(secret in told for secret in secrets)


def answered(port: int) -> bytes:
    """What a scheduler or worker says to one without a certificate of the cluster."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        try:
            # In TLS 1.3 a client is connected before the server has looked at its certificate.
            with context.wrap_socket(sock) as secure:
                return secure.recv(1)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_workers_import_from_where_the_notebook_does(
    pool: sky.ComputePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words_beside.py").write_text("def word(): return __file__")
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("words_beside").word
    assert pool.dask().submit(found).result() == str(tmp_path / "words_beside.py")


def test_workers_have_the_new_code_of_an_edited_module_and_the_state_of_others(
    pool: sky.ComputePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import joblib

    edited_file = tmp_path / "edited_beside.py"
    edited_file.write_text("def helper(x): return x + 1")
    (tmp_path / "kept_beside.py").write_text(
        "import random\nfrom edited_beside import helper\nstate = random.random()\n"
        "def both(x): return helper(x), state\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    edited, kept = (importlib.import_module(f"{name}_beside") for name in ("edited", "kept"))

    def there() -> Any:
        return joblib.Parallel(n_jobs=-1)(joblib.delayed(edited.helper)(at) for at in range(3))

    assert there() == [1, 2, 3]
    before = pool.dask().run(kept.both, 0)
    edited_file.write_text("def helper(x): return x + 1000")
    importlib.reload(edited)
    assert there() == [1000, 1001, 1002]
    after = pool.dask().run(kept.both, 0)
    assert after == {worker: (1000, state) for worker, (_, state) in before.items()}

    edited_file.write_text("def helper(x): return x +")
    with pytest.raises(sky.SkyError, match="edited_beside again .* correct the module"):
        there()
    edited_file.write_text("def helper(x): return x + 7")
    assert there() == [7, 8, 9]


def test_what_dask_says_is_in_the_logs(pool: sky.ComputePool) -> None:
    assert b"distributed.scheduler" in pool.cluster.log(0).data
    assert b"distributed.worker" in pool.cluster.log(1).data


def test_a_worker_that_is_killed_comes_back(pool: sky.ComputePool) -> None:
    before = workers(pool)
    os.kill(before["rank-1"], signal.SIGKILL)
    until(lambda: workers(pool).get("rank-1") not in (None, before["rank-1"]))
    assert pool.dask().submit(len, "abc").result() == 3


def test_a_rank_that_is_killed_takes_its_worker_along_and_gets_another(
    pool: sky.ComputePool,
) -> None:
    before, rank = workers(pool), pool.cluster.state.ranks[1].pid
    assert rank
    os.kill(rank, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(before["rank-1"]))
    until(lambda: workers(pool).get("rank-1"))
    assert pool.dask().submit(len, "abc").result() == 3


def test_the_head_that_is_killed_gets_another_scheduler(pool: sky.ComputePool) -> None:
    client, rank = pool.dask(), pool.cluster.state.ranks[0].pid
    assert rank
    os.kill(rank, signal.SIGKILL)
    until(lambda: pool.cluster.state.ranks[0].run)
    pool.cluster.interrupt()  # what starts the other scheduler, and is begun again
    until(lambda: pool.cluster.state.ranks[0].pid not in (None, rank))
    until(lambda: client.status == "running" and len(workers(pool)) == 2)
    assert client.submit(len, "abc").result() == 3


def test_a_scaled_pool_has_a_worker_more(pool: sky.ComputePool) -> None:
    pool.scale(3)
    until(lambda: sorted(workers(pool)) == ["rank-0", "rank-1", "rank-2"])
    pool.scale(2)
    until(lambda: sorted(workers(pool)) == ["rank-0", "rank-1"])


def test_a_cluster_is_not_idle_while_dask_works_and_nothing_is_left_of_it() -> None:
    from distributed import Event

    dask = sky.plugins.dask(concurrency=3)
    with sky.ComputePool(nodes=1, plugins=[dask], idle_timeout=30) as made:
        client = made.dask()
        assert list(client.nthreads().values()) == [3]
        task = client.submit(lambda: Event("over").wait())

        def long() -> bool:
            shown = made.cluster.snapshot()["run"]
            return bool(shown and shown["title"] == "tasks on Dask" and shown["seconds"] > 34)

        until(long)  # for longer than it may be idle
        assert made.cluster.alive
        Event("over", client=client).set()
        assert task.result()
        processes = dask_processes(made)
    _, left = psutil.wait_procs(processes, PATIENCE)
    assert not left
    assert client.status == "closed"
    with pytest.raises(sky.SkyError, match="not up"):
        _ = made.cluster


def test_a_cluster_is_not_idle_while_workers_come() -> None:
    with sky.ComputePool(nodes=1, idle_timeout=15) as made:

        def hold_up_the_worker() -> None:
            scheduler, worker = until(lambda: both if len(both := dask_processes(made)) > 1 else ())
            worker = max(scheduler, worker, key=psutil.Process.create_time)
            worker.suspend()
            threading.Event().wait(20)  # for longer than it may be idle
            worker.resume()

        threading.Thread(target=hold_up_the_worker, daemon=True).start()
        assert client_of(made.cluster).submit(len, "abc").result() == 3


def test_a_pool_without_dask_says_how_to_get_it() -> None:
    with pytest.raises(sky.UsageError, match=r"plugins=\[sky.plugins.dask\(\)\]"):
        sky.ComputePool(nodes=1).dask()


def test_the_command_that_installs_it_can_be_typed_in_any_shell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # Python's way to say it is not there
    with (
        pytest.raises(sky.SkyError) as caught,
        sky.ComputePool(nodes=1, plugins=[sky.plugins.sklearn()]),
    ):
        pass
    assert str(caught.value) == (
        "distributed is not installed where the notebook runs: "
        "run `%pip install 'jupyter-sky[dask]'`."
    )


def test_bad_arguments_are_refused() -> None:
    for wrong in ({"concurrency": 0}, {"concurrency": "many"}, {"memory": -1}):
        with pytest.raises(sky.UsageError, match="is not possible"):
            sky.plugins.dask(**wrong)  # type: ignore[arg-type]
