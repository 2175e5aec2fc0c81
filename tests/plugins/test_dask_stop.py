"""Stop ends what Dask runs: the workers are free for the next cell."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from tests.installed import skip_without
from tests.waiting import until

skip_without("distributed")


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.joblib()]) as made:
        yield made


def work(folder: Path, at: int) -> int:
    """Leave a file as it begins, and another one as it is interrupted or ends."""
    try:
        (folder / f"begun-{at}").touch()
        for _ in range(12_000):
            time.sleep(0.01)
    except KeyboardInterrupt:
        (folder / f"interrupted-{at}").touch()
        raise
    (folder / f"ended-{at}").touch()
    return at


def by_joblib(folder: Path) -> None:
    import joblib

    joblib.Parallel(n_jobs=-1, batch_size=1)(joblib.delayed(work)(folder, at) for at in range(9))


def by_dask(folder: Path) -> None:
    import dask

    # So many that others would begin if they were let go one after the other.
    dask.compute(*[dask.delayed(work)(folder, at) for at in range(400)])


def press(pool: sky.ComputePool) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def click(pool: sky.ComputePool) -> None:
    until(pool.cluster.interrupt)


@contextlib.contextmanager
def stopping(begun: Callable[[], object], stop: Callable[[], None]) -> Iterator[None]:
    """Stop, from another thread, what is done inside, once it has begun."""

    def stop_once_begun() -> None:
        until(begun)
        stop()

    thread = threading.Thread(target=stop_once_begun)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    ("run", "stop", "error"),
    [
        (by_joblib, press, KeyboardInterrupt),
        (by_dask, press, KeyboardInterrupt),
        (by_joblib, click, concurrent.futures.CancelledError),
    ],
    ids=["joblib", "dask", "strip"],
)
def test_stop_ends_calls_that_have_begun(
    pool: sky.ComputePool,
    tmp_path: Path,
    run: Callable[[Path], None],
    stop: Callable[[sky.ComputePool], None],
    error: type[BaseException],
) -> None:
    import joblib

    def files(kind: str) -> list[Path]:
        return list(tmp_path.glob(f"{kind}-*"))

    begun = stopping(lambda: len(files("begun")) == 2, lambda: stop(pool))
    with begun, pytest.raises(error):
        run(tmp_path)
    assert joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(-at) for at in range(4)) == [0, 1, 2, 3]
    until(lambda: len(files("interrupted")) == 2)
    assert len(files("begun")) == 2 and not files("ended")


@contextlib.contextmanager
def futures(folder: Path) -> Iterator[list[Any]]:
    """Tasks that go on after a Stop, as with Dask elsewhere, until they are cancelled."""
    from distributed import default_client

    client: Any = default_client()
    made = client.map(work, [folder] * 2, range(2), pure=False)
    try:
        yield made
    finally:
        client.cancel(made, force=True)
        client.end_unwanted()


def by_gather(folder: Path) -> None:
    with futures(folder) as made:
        made[0].client.gather(made)


def by_wait(folder: Path) -> None:
    from distributed import wait

    with futures(folder) as made:
        wait(made)


@pytest.mark.parametrize("run", [by_dask, by_gather, by_wait])
def test_stop_says_where_the_cell_waited_and_nothing_else(
    pool: sky.ComputePool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    run: Callable[[Path], None],
) -> None:
    begun = stopping(lambda: list(tmp_path.glob("begun-*")), lambda: press(pool))
    with begun, pytest.raises(KeyboardInterrupt) as stopped:
        run(tmp_path)
    assert "threading.py" not in {entry.path.name for entry in stopped.traceback}
    # What was not told of an error is logged when it is let go, in the loop of the client's.
    assert pool.dask().submit(abs, -7).result() == 7
    gc.collect()
    assert "never retrieved" not in caplog.text


def counted(folder: Path) -> int:
    """Return how often this has begun by then; the first time, it takes a Stop for an error."""
    try:
        (folder / f"begun-{time.monotonic_ns()}").touch()
        count = len(list(folder.glob("begun-*")))
        for _ in range(12_000 if count == 1 else 0):
            time.sleep(0.01)
    except BaseException:
        (folder / "interrupted").touch()
        until((folder / "wanted again").exists)
        return -1
    return count


def test_a_task_that_is_wanted_again_begins_anew(pool: sky.ComputePool, tmp_path: Path) -> None:
    client = pool.dask()
    first = client.submit(counted, tmp_path)
    until(lambda: list(tmp_path.glob("begun-*")))
    first.release()
    client.end_unwanted()
    until((tmp_path / "interrupted").exists)
    again = client.submit(counted, tmp_path)
    (tmp_path / "wanted again").touch()
    assert again.result() == 2


def test_what_others_want_goes_on(pool: sky.ComputePool, tmp_path: Path) -> None:
    client = pool.dask()
    done = threading.Event()
    wanted = client.submit(lambda: [time.sleep(0.01) for _ in range(50)] and 7)
    wanted.add_done_callback(lambda _: done.set())
    client.end_unwanted()
    assert wanted.result() == 7 and done.wait()
