"""Profiles that need a code of the user's device: it is asked for once, by this and AWS's tools.

What was had for the code is kept where AWS's own command line keeps it. Giving back asks nothing: a
question that nobody answers would keep machines running.
"""

from __future__ import annotations

import contextlib
import getpass
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.transport import event_loop

_CACHE = "~/.aws/cli/cache"

_silent: ContextVar[bool] = ContextVar("silent", default=False)
_lock = threading.Lock()


@contextlib.contextmanager
def without_questions() -> Iterator[None]:
    """Have calls of this thread fail rather than ask for a code."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def prepare(session: Any, is_fresh: bool = False) -> None:
    """Have a session of boto3 ask here, and keep what it gets.

    Parameters
    ----------
    session
        The session.
    is_fresh
        Whether the credentials of a role are to have all their time left: what was kept may end in
        a quarter of an hour. Where a code is needed, they are kept all the same.
    """
    core = session._session
    for provider in core.get_component("credential_provider").providers:
        if provider.METHOD == "assume-role":
            if not is_fresh or "mfa_serial" in core.get_scoped_config():
                provider.cache = _cache()
            provider._prompter = _ask


def _cache() -> Any:
    """Return a cache on disk, without which calls go on: a full disk must not keep instances."""
    from botocore.utils import JSONFileCache

    class Cache(JSONFileCache):  # type: ignore[misc]
        def __setitem__(self, key: str, value: Any) -> None:
            with contextlib.suppress(OSError):
                super().__setitem__(key, value)

    return Cache(Path(_CACHE).expanduser())


def _ask(text: str) -> str:
    if _silent.get():
        raise SkyError(
            "your session with AWS has expired, and the code of your device is needed: run a "
            "command that asks for it, like `%sky doctor --provider aws`, then this again."
        )
    is_waited_for = event_loop.somebody_waits()  # not any more after Ctrl-C at another question
    with _lock:
        try:
            return event_loop.call_in_waiting_thread(getpass.getpass, text)
        except event_loop.NoWaitingThread:
            if is_waited_for:
                raise SkyError("the code of your device was not given.") from None
            return getpass.getpass(text)
