"""Dask's workers and client as their users end and limit them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from tests.installed import skip_without
from tests.plugins.test_dask import workers
from tests.waiting import until

skip_without("distributed")

LIMIT = 4 * 2**30
ENDED = r"Dask on .* has ended with its cluster: use `pool.dask\(\)` of another pool"


def limited(info: Any) -> Iterator[None]:
    """Limit the memory of a rank, as Dask finds it; Linux does not enforce this limit."""
    resource.setrlimit(resource.RLIMIT_RSS, (LIMIT, LIMIT))
    yield


def begin_and_wait(begun: Path) -> None:
    begun.touch()
    threading.Event().wait()


def test_workers_share_what_memory_there_is_and_a_restart_ends_tasks_that_run(
    tmp_path: Path,
) -> None:
    plugins = [sky.Plugin("limited", around_process=limited), sky.plugins.dask()]
    with sky.ComputePool(nodes=2, plugins=plugins) as pool:
        client, before = pool.dask(), workers(pool)
        limits = [each["memory_limit"] for each in client.scheduler_info()["workers"].values()]
        assert limits == [LIMIT // 2] * 2

        task = client.submit(begin_and_wait, tmp_path / "begun")
        until((tmp_path / "begun").exists)
        client.restart(timeout=25)  # less than what Dask waits for a task that runs
        assert task.status == "cancelled"
        after = workers(pool)
        assert set(after) == set(before)
        assert not {*after.values()} & {*before.values()}
    uses = (
        lambda: client.submit(len, "abc"),
        lambda: client.gather([task]),
        lambda: client.run(len, "abc"),
        task.result,
    )
    for use in uses:
        with pytest.raises(sky.SkyError, match=ENDED):
            use()


def test_who_waits_for_dask_reads_that_its_cluster_was_ended_by_others(tmp_path: Path) -> None:
    import joblib

    with (
        sky.ComputePool(nodes=1, plugins=[sky.plugins.joblib()]) as pool,
        ThreadPoolExecutor() as elsewhere,
    ):
        client = pool.dask()
        task = client.submit(begin_and_wait, tmp_path / "begun")
        waits = [elsewhere.submit(wait) for wait in (task.result, partial(client.gather, [task]))]
        until((tmp_path / "begun").exists)
        pool.cluster.down()
        for each in waits:
            with pytest.raises(sky.SkyError, match=ENDED):
                each.result(20)
        until(lambda: client.status == "closed")
        with pytest.raises(sky.SkyError, match=ENDED):
            joblib.Parallel(n_jobs=-1)([joblib.delayed(len)("abc")])
    assert joblib.Parallel(n_jobs=1)([joblib.delayed(len)("abc")]) == [3]


def test_a_client_that_its_user_has_closed_is_replaced() -> None:
    import joblib

    def there() -> int:
        [found] = joblib.Parallel(n_jobs=-1)([joblib.delayed(os.getppid)()])
        return int(found)

    with sky.ComputePool(nodes=1, plugins=[sky.plugins.joblib()]) as pool:
        rank = pool.cluster.state.ranks[0].pid
        with pool.dask() as client:
            assert client.submit(os.getppid).result() == rank
        with pytest.raises(sky.SkyError, match=r"is closed: use `pool.dask\(\)`"):
            client.submit(len, "abc")
        assert there() == rank
        pool.dask().close()
        assert pool.dask().submit(os.getppid).result() == rank
        assert there() == rank


NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_in_the_group() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


def test_tasks_are_not_told_the_place_of_their_rank_in_its_process_group() -> None:
    """With it, what trains a model in a task would join the group of the ranks."""
    skip_without("torch")
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.torch(), sky.plugins.dask()]) as pool:
        of_ranks = sky.compute(place_in_the_group)() @ pool
        assert [place[0] for place in of_ranks] == ["0", "1"]
        assert all(None not in place for place in of_ranks)
        of_tasks = pool.dask().run(place_in_the_group)
        assert list(of_tasks.values()) == [[None] * len(NAMES)] * 2


def folders_of_dask(pool: sky.ComputePool) -> list[Path]:
    """Where Dask's processes write."""
    client = pool.dask()
    of_workers = client.run(lambda dask_worker: dask_worker.local_directory)
    of_scheduler = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
    return [Path(each) for each in (*of_workers.values(), of_scheduler)]


def test_what_dask_writes_is_where_no_other_user_can_and_ends_with_its_cluster() -> None:
    """Workers unpickle what they have written; anybody can make Dask's usual folder first."""
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.dask()]) as pool:
        found = folders_of_dask(pool)
        for folder in found:
            private = [each for each in folder.parents if each.stat().st_mode & 0o077 == 0]
            assert private, f"others can replace {folder}"
            above = folder.parents[: folder.parents.index(private[-1]) + 1]
            assert {each.stat().st_uid for each in above} == {os.getuid()}
    assert not [each for each in found if each.exists()]


def test_dask_writes_where_its_own_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
    with sky.ComputePool(nodes=1, plugins=[sky.plugins.dask()]) as pool:
        assert all(each.is_relative_to(tmp_path) for each in folders_of_dask(pool))
