"""The life of a rank as its plugins see it: once around the process, and around each group."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any

from jupyter_sky.api.call import Decorate
from jupyter_sky.api.instance import InstanceInfo, instance_info
from jupyter_sky.api.plugin import Around, Plugin, check_plugins
from jupyter_sky.errors import SkyError, UsageError


class PluginLifecycle:
    """The plugins of a cluster, to be entered and left by a rank.

    It travels pickled to the rank. The rank sets COMPUTE_POOL and then calls::

        life.enter_process()
        life.enter_app()      # ... runs ...
        life.exit_app()
        life.enter_app()      # the group was broken: form the next one
        life.exit_app()
        life.exit_process()

    Parameters
    ----------
    plugins
        In the order in which they are entered; they are left in the opposite one.
    """

    def __init__(self, plugins: Iterable[Plugin] = ()) -> None:
        self.plugins = check_plugins(plugins)
        self._process = ExitStack()
        self._app = ExitStack()

    def __reduce__(self) -> tuple[type[PluginLifecycle], tuple[tuple[Plugin, ...]]]:
        return PluginLifecycle, (self.plugins,)

    @property
    def decorators(self) -> tuple[Decorate, ...]:
        """What to put around each function that runs on a rank."""
        return tuple(plugin.decorate for plugin in self.plugins if plugin.decorate)

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that a node imports once, before it forks its ranks."""
        return tuple(dict.fromkeys(name for plugin in self.plugins for name in plugin.preload))

    def process(self, info: InstanceInfo) -> AbstractContextManager[None]:
        """Be what plugins put around the process of a rank."""
        return self._all("around_process", info)

    def app(self, info: InstanceInfo) -> AbstractContextManager[None]:
        """Be what plugins put around one formation of the group."""
        return self._all("around_app", info)

    def enter_process(self) -> None:
        """Enter `process`, on a rank."""
        self._process.enter_context(self.process(_here()))

    def exit_process(self) -> None:
        """Leave `process`; nothing when it was not entered."""
        self._process.close()

    def enter_app(self) -> None:
        """Enter `app`, on a rank; leaves the former one first when nobody did."""
        self.exit_app()
        self._app.enter_context(self.app(_here()))

    def exit_app(self) -> None:
        """Leave `app`; nothing when it was not entered."""
        self._app.close()

    @contextmanager
    def _all(self, hook: str, info: InstanceInfo) -> Iterator[None]:
        with ExitStack() as stack:
            for plugin in self.plugins:
                around = getattr(plugin, hook)
                if around is not None:
                    stack.enter_context(_Part(plugin.name, hook, around, info))
            yield


class _Part(AbstractContextManager[None]):
    """One plugin's part in a rank's life: its own errors name it."""

    def __init__(self, plugin: str, hook: str, around: Around, info: InstanceInfo) -> None:
        self._where = f"plugin {plugin!r}, {hook}"
        self._around = around
        self._info = info

    def __enter__(self) -> None:
        with self._named():
            self._context = self._opened()
            self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with self._named(but=error):
            return self._context.__exit__(kind, error, traceback)

    def _opened(self) -> AbstractContextManager[Any]:
        context = self._around(self._info)
        if isinstance(context, Generator):
            return contextmanager(lambda: context)()
        if not hasattr(context, "__enter__"):
            raise UsageError(
                f"{self._where} is a function that neither yields nor returns a context manager: "
                "put a `yield` between its beginning and its end."
            )
        return context

    @contextmanager
    def _named(self, but: BaseException | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if error is not but:
                error.add_note(f"in {self._where}")
            raise


def _here() -> InstanceInfo:
    info = instance_info()
    if info is None:
        raise SkyError("COMPUTE_POOL is not set: plugins are entered on the ranks of a cluster.")
    return info
