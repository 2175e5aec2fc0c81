"""joblib's calls on Dask end, however they fail, and their errors say so."""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jupyter_sky as sky
from tests.installed import skip_without
from tests.waiting import PATIENCE

skip_without("distributed")


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(nodes=2, plugins=[sky.plugins.joblib()]) as made:
        yield made


class OfTwoWords(Exception):
    """An error that pickle takes apart and cannot make again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def fail(_: object) -> None:
    raise OfTwoWords("no", "luck")


def fail_inside(_: object) -> None:
    import joblib

    joblib.Parallel(n_jobs=2, timeout=PATIENCE)(joblib.delayed(fail)(at) for at in range(2))


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lock(_: object) -> Any:
    return threading.Lock()


class NeverAgain:
    """What is pickled, but cannot be made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("never",)


def never_again(_: object) -> NeverAgain:
    return NeverAgain()


@pytest.mark.parametrize(
    ("function", "argument", "error", "words"),
    [
        (fail, 0, OfTwoWords, "no luck"),
        (fail_inside, 0, OfTwoWords, "no luck"),
        (die, 0, Exception, r"workers died(.|\n)*`jupyter sky logs \d`"),
        (lock, 0, TypeError, "lock"),
        (never_again, 0, ValueError, "never"),
        (abs, threading.Lock(), TypeError, "serialize"),
        (abs, NeverAgain(), RuntimeError, "deserialization"),
    ],
    ids=["error", "nested", "death", "result", "made again", "argument", "read there"],
)
def test_a_call_that_fails_ends_all(
    pool: sky.ComputePool,
    function: Callable[[Any], Any],
    argument: object,
    error: type[Exception],
    words: str,
) -> None:
    import joblib

    with pytest.raises(error) as caught:
        joblib.Parallel(n_jobs=-1, timeout=PATIENCE)(
            joblib.delayed(function)(argument) for _ in range(3)
        )
    shown = "".join(traceback.format_exception_only(caught.value))
    assert re.search(words, shown)
    assert joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(-at) for at in range(4)) == [0, 1, 2, 3]


def test_an_error_says_in_which_line_of_the_call(pool: sky.ComputePool) -> None:
    import joblib

    with pytest.raises(OfTwoWords) as caught:
        joblib.Parallel(n_jobs=-1, timeout=PATIENCE)([joblib.delayed(fail)(0)])
    assert "in fail" in str(caught.value.__cause__)
    assert "in _carry_out" not in str(caught.value.__cause__)
    assert "joblib_calls.py" not in str(caught.value.__cause__)
    ours = [entry for entry in caught.traceback if "dask_cluster" in str(entry.path)]
    assert all(entry.ishidden(caught) for entry in ours), "IPython shows them"


def test_data_that_ended_with_all_workers_is_said(pool: sky.ComputePool) -> None:
    client: Any = pool.dask()
    data = client.scatter(bytes(10_000), broadcast=True)
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception, match="cancelled") as caught:
        client.submit(len, data).result()
    assert any("that had data for it have ended" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("function", "argument"),
    [(abs, threading.Lock()), (lock, 0), (never_again, 0)],
    ids=["argument", "result", "made again"],
)
def test_what_cannot_be_sent_is_said_once(
    pool: sky.ComputePool,
    caplog: pytest.LogCaptureFixture,
    function: Callable[[Any], Any],
    argument: object,
) -> None:
    with pytest.raises((TypeError, ValueError), match="lock|serialize|never"):
        pool.dask().submit(function, argument, pure=False).result()
    assert not [record.name for record in caplog.records if record.exc_info]
