"""What must not be cut off is not, and says nothing more than who waits for it wants to know."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading

import pytest

from jupyter_sky.transport import event_loop
from jupyter_sky.transport.tasks import Changes, Coalescer, Flag, blocking, cancel_all, undoing
from tests.waiting import PATIENCE


def test_an_error_after_a_stop_is_nobodys() -> None:
    told: list[object] = []
    begun, goes_on = threading.Event(), threading.Event()

    def fails() -> None:
        begun.set()
        goes_on.wait()
        raise ValueError("late")

    async def stop() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        task = asyncio.ensure_future(blocking(fails))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        goes_on.set()
        await asyncio.wait({task})
        assert task.cancelled()
        del task
        gc.collect()

    asyncio.run(stop())
    gc.collect()
    assert told == []


def test_errors_of_tasks_that_are_cancelled_are_nobodys() -> None:
    told: list[object] = []

    async def fails() -> None:
        raise ValueError("at once")

    async def stop() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        tasks = [loop.create_task(fails()), loop.create_task(asyncio.Event().wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await cancel_all(tasks)
        assert all(task.done() for task in tasks)

    asyncio.run(stop())
    gc.collect()
    assert told == []


def test_a_question_is_asked_in_the_main_thread_whichever_others_wait() -> None:
    waits, answered = threading.Event(), threading.Event()

    async def wait_beside() -> None:
        waits.set()
        await asyncio.to_thread(answered.wait)

    async def ask() -> threading.Thread:
        threading.Thread(target=lambda: event_loop.wait(wait_beside())).start()
        await asyncio.to_thread(waits.wait)
        asked = event_loop.call_in_waiting_thread
        try:
            return await asyncio.to_thread(asked, threading.current_thread)
        finally:
            answered.set()

    assert event_loop.wait(ask()) is threading.main_thread()


def test_a_second_stop_ends_the_waiting_but_not_the_clean_up() -> None:
    done: list[str] = []
    begun, cleans, goes_on, over = (threading.Event() for _ in range(4))

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleans.set()
            await asyncio.to_thread(goes_on.wait)
            done.append("clean")
            over.set()

    def press_twice() -> None:
        for event in (begun, cleans):
            event.wait()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press_twice)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        event_loop.wait_with_cleanup(work())
    pressing.join()
    assert done == []
    goes_on.set()
    assert over.wait(PATIENCE)
    assert done == ["clean"]


def test_what_comes_at_one_time_is_handed_on_as_one_and_before_what_belongs_behind_it() -> None:
    taken: list[list[int]] = []

    async def scenario() -> None:
        batch = Coalescer(taken.append)
        batch.add(1)
        batch.add(2)
        assert taken == []
        await asyncio.sleep(0)
        assert taken == [[1, 2]]
        batch.add(3)
        batch.flush()  # something else comes
        assert taken == [[1, 2], [3]]
        batch.add(4)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        batch.flush()
        assert taken == [[1, 2], [3], [4]]

    asyncio.run(scenario())


def test_who_waits_for_a_change_is_told_and_an_observer_that_fails_disturbs_nothing() -> None:
    calls: list[str] = []

    def fails() -> None:
        calls.append("fails")
        raise ValueError

    async def scenario() -> None:
        changes = Changes([fails, lambda: calls.append("well")])
        waiting = [asyncio.ensure_future(changes.next()) for _ in range(2)]
        waiting[0].cancel()
        await asyncio.sleep(0)
        changes.tell()
        await waiting[1]
        assert calls == ["fails", "well"]
        following = asyncio.ensure_future(changes.next())
        await asyncio.sleep(0)
        assert not following.done()
        changes.tell()
        await following

    asyncio.run(scenario())


def test_a_flag_lets_all_go_on_that_wait_for_it() -> None:
    flag, gone_on = Flag(), []
    threads = [
        threading.Thread(target=lambda: gone_on.append(flag.wait(60)), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert (flag.wait(0.01), flag.is_set(), gone_on) == (False, False, [])
    flag.set()
    flag.set()
    for thread in threads:
        thread.join(60)
    assert (gone_on, flag.wait(60), flag.is_set()) == ([True] * 3, True, True)


@pytest.mark.parametrize("times", [1, 3])
def test_what_undoes_something_is_cancelled_once_and_can_limit_how_long_it_takes(
    times: int,
) -> None:
    seen: list[str] = []

    async def work(goes_on: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # Python 3.11 does not tell the end of its time from what it was cancelled by before.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            await goes_on.wait()
            seen.append("undone")

    async def stop() -> None:
        goes_on = asyncio.Event()
        task = asyncio.ensure_future(undoing(work, goes_on))
        for _ in range(times):
            await asyncio.wait({task}, timeout=0.02)
            task.cancel()
        await asyncio.wait({task}, timeout=0.02)
        assert (task.done(), seen) == (False, [])
        goes_on.set()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert (task.cancelled(), seen) == (True, ["undone"])

    asyncio.run(stop())
