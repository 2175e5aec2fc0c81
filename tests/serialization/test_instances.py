"""All objects of a process are looked through, while other threads go on."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import FrameType

import pytest

from jupyter_sky.serialization.instances import instances


class Kept:
    pass


@pytest.fixture(autouse=True)
def heap() -> None:
    """Leave out what other tests have imported: to look through that takes a minute in all."""
    gc.collect()
    gc.freeze()


def found() -> Iterator[int]:
    for _ in range(3):
        yield len(instances((Kept,))[0])


def test_a_tuple_is_made_although_somebody_looks_at_what_the_thread_does() -> None:
    """As `%sky where` does: it keeps frames, whose variables stay with them."""
    kept = [Kept() for _ in range(5)]
    usual, here, is_over = sys.getswitchinterval(), threading.get_ident(), threading.Event()
    seen: deque[FrameType | None] = deque(maxlen=50)

    def look() -> None:
        while not is_over.is_set():
            seen.append(sys._current_frames().get(here))

    looker = threading.Thread(target=look)
    looker.start()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(2_000):
            assert tuple(found()) == (len(kept),) * 3
    finally:
        sys.setswitchinterval(usual)
        is_over.set()
        looker.join()


def test_other_threads_make_tuples_meanwhile() -> None:
    """As one that prefetches batches does while a rank looks for what it trains."""
    kept = [Kept() for _ in range(5)]
    usual, is_over = sys.getswitchinterval(), threading.Event()
    errors: list[SystemError] = []

    def make() -> None:
        while not is_over.is_set():
            try:
                assert len(tuple(number for number in range(25))) == 25
            except SystemError as error:
                errors.append(error)

    maker = threading.Thread(target=make)
    maker.start()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20_000):
            assert {*map(id, kept)} <= {*map(id, instances((Kept,))[0])}
    finally:
        sys.setswitchinterval(usual)
        is_over.set()
        maker.join()
    assert not errors


def test_classes_that_derive_from_others_are_found_however_late_they_were_made() -> None:
    class Base:  # objects of another test may not be collected yet
        pass

    class First(Base):
        pass

    class Second(First, deque):  # type: ignore[type-arg]
        pass

    made = [First(), Second(), deque()]
    ours, first, queues = instances((Base,), (First,), (deque,))
    assert {*map(id, made[:2])} == {*map(id, ours)} == {*map(id, first)}
    assert {id(each) for each in made[1:]} <= {*map(id, queues)}
