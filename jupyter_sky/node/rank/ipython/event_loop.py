"""The event loop of a rank, for cells that await and for the tasks that they leave.

It runs while such a cell does, and while the rank waits for the next run, as in a notebook's
kernel. In other cells no loop is running, so that they may call ``asyncio.run``.
"""

from __future__ import annotations

import ast
import contextlib
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.async_helpers import get_asyncio_loop

if TYPE_CHECKING:
    import asyncio

_NEED_IT = ("create_task", "get_running_loop")
"""Functions of `asyncio` that fail where no loop is running, and that need not be awaited."""

_IMPORT = "from asyncio import"

_was_used = False
_over: asyncio.Future[None] | None = None  # what `run_tasks_until_readable` waits for


def is_needed(cell: str, names: Mapping[str, Any]) -> bool:
    """Return whether a cell needs a running loop, although it awaits nothing.

    What functions in it do is not looked at: they may be meant for ``asyncio.run``.

    Parameters
    ----------
    cell
        Its code.
    names
        The namespace that it runs in.
    """
    if not any(name in cell for name in _NEED_IT):
        return False
    with contextlib.suppress(SyntaxError, ValueError):
        waiting: list[ast.AST] = [ast.parse(cell)]
        while waiting:
            node = waiting.pop()
            match node:
                case ast.Call(ast.Attribute(ast.Name("asyncio"), name)) if name in _NEED_IT:
                    return True
                case ast.Call(ast.Name(name)) if name in _NEED_IT and (
                    _IMPORT in cell or _is_of_asyncio(names.get(name))
                ):
                    return True
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting.extend(ast.iter_child_nodes(node))
    return False


def _is_of_asyncio(function: object) -> bool:
    return getattr(function, "__module__", "") in ("asyncio.tasks", "_asyncio")


def note_use() -> None:
    """Remember that a cell runs in the loop: it may leave tasks."""
    global _was_used
    _was_used = True


def has_tasks() -> bool:
    """Return whether cells have left tasks."""
    return _was_used and bool(_tasks(get_asyncio_loop()))


def run_tasks_until_readable(sock: socket.socket, within: float | None) -> None:
    """Let the tasks that cells have left go on until a socket can be read, or for some seconds."""
    global _over
    loop = get_asyncio_loop()
    over = _over = loop.create_future()
    timer = None if within is None else loop.call_later(within, _end, over)
    loop.add_reader(sock, _end, over)
    try:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # a task keeps its own
            loop.run_until_complete(over)
    finally:
        _over = None
        loop.remove_reader(sock)
        if timer:
            timer.cancel()


def return_from_tasks() -> None:
    """Let `run_tasks_until_readable` return: a task has itself read what it waits for."""
    if _over:
        _end(_over)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def cancel_tasks() -> None:
    """Cancel the tasks that cells have left."""
    import asyncio

    loop = get_asyncio_loop()
    tasks = _tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks and not loop.is_running():
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.wait(tasks, timeout=0.2))


def _tasks(loop: asyncio.AbstractEventLoop) -> set[asyncio.Task[object]]:
    import asyncio

    return asyncio.all_tasks(loop)
