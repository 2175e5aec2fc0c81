"""What must not be cut off is not, and says nothing more than who waits for it wants to know."""

from __future__ import annotations

import asyncio
import gc
import threading

from jupyter_sky.transport.tasks import blocking, cancel_all


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
