"""Enters and leaves plugins: around a rank's process, each process group, and in the notebook."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from jupyter_sky.api.instance import InstanceInfo, instance_info
from jupyter_sky.api.plugin import HOOKS, Plugin, check_connected, check_plugins
from jupyter_sky.errors import SkyError, UsageError

T = TypeVar("T")

_PACKAGE = "jupyter_sky."


class PluginLifecycle:
    """The plugins of a cluster, to be entered and left by a rank.

    It is sent to the rank as a pickle. The rank sets COMPUTE_POOL and then calls::

        lifecycle.enter_process()
        lifecycle.enter_app()      # ... runs ...
        lifecycle.exit_app()
        lifecycle.enter_app()      # the group was broken: form the next one
        lifecycle.exit_app()
        lifecycle.exit_process()

    Parameters
    ----------
    plugins
        The plugins, in the order in which they are entered; they are left in reverse order.
    """

    def __init__(self, plugins: Iterable[Plugin] = ()) -> None:
        self.plugins = check_plugins(plugins)
        self._process = ExitStack()
        self._app = ExitStack()

    def __reduce__(self) -> tuple[type[PluginLifecycle], tuple[tuple[Plugin, ...]]]:
        return PluginLifecycle, (self.plugins,)

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that a node imports once, before it forks its ranks."""
        return tuple(dict.fromkeys(name for plugin in self.plugins for name in plugin.preload))

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of ours that a rank imports to read the pickle: a node can do that once, too."""
        hooks = (getattr(plugin, hook) for plugin in self.plugins for hook in HOOKS)
        rooms = {
            ".".join(_module(hook).split(".")[:2])  # all plugins at once: they are small
            for hook in hooks
            if _module(hook).startswith(_PACKAGE)
        }
        return (__name__, *sorted(rooms))

    def process(self, info: InstanceInfo) -> AbstractContextManager[None]:
        """Return the context of all plugins around the process of a rank."""
        return self._all("around_process", info)

    def app(self, info: InstanceInfo) -> AbstractContextManager[None]:
        """Return the context of all plugins around one process group."""
        check_connected(self.plugins, info.world_size)
        return self._all("around_app", info)

    def enter_process(self) -> None:
        """Enter `process`, on a rank."""
        self._process.enter_context(self.process(_here()))

    def exit_process(self) -> None:
        """Leave `process`, if it was entered."""
        self._process.close()

    def enter_app(self) -> None:
        """Enter `app`, on a rank; the former one is left first, if it was not."""
        self.exit_app()
        self._app.enter_context(self.app(_here()))

    def exit_app(self) -> None:
        """Leave `app`, if it was entered."""
        self._app.close()

    def enter_further(self, other: PluginLifecycle) -> None:
        """Enter the process of those plugins of another lifecycle that this one does not have.

        The next `enter_app` enters theirs too, in the order of the other.
        """
        known = {plugin.name: plugin for plugin in self.plugins}
        new = [plugin for plugin in other.plugins if plugin.name not in known]
        if new:
            self._process.enter_context(self._all("around_process", _here(), new))
            self.plugins = tuple(known.get(each.name, each) for each in other.plugins)

    @contextmanager
    def _all(
        self, hook: str, info: InstanceInfo, plugins: Iterable[Plugin] | None = None
    ) -> Iterator[None]:
        with ExitStack() as stack:
            for plugin in self.plugins if plugins is None else plugins:
                around = getattr(plugin, hook)
                if around is not None:
                    stack.enter_context(_Hook(plugin.name, hook, around, info))
            yield


class ClientLifecycle:
    """The plugins of a cluster, as the notebook enters and leaves them.

    Parameters
    ----------
    plugins
        The plugins, in the order in which they are entered; they are left in reverse order.
    """

    def __init__(self, plugins: Iterable[Plugin] = ()) -> None:
        self._plugins = [each for each in plugins if each.around_client]
        self._stack = ExitStack()
        self._given: dict[str, Any] = {}

    def enter(self, pool: Any, cluster: Any) -> None:
        """Enter all of them; where one fails, those before it are left."""
        with ExitStack() as stack:
            for plugin in self._plugins:
                hook = _Hook(plugin.name, "around_client", plugin.around_client, pool, cluster)
                self._given[plugin.name] = stack.enter_context(hook)
            self._stack = stack.pop_all()

    def enter_further(self, plugins: Iterable[Plugin], cluster: Any) -> None:
        """Enter more of them, which are left before those that were entered."""
        for plugin in plugins:
            if plugin.around_client:
                hook = _Hook(plugin.name, "around_client", plugin.around_client, None, cluster)
                self._given[plugin.name] = self._stack.enter_context(hook)
                self._plugins.append(plugin)

    def add(self, context: AbstractContextManager[T]) -> T:
        """Enter one thing more, which is left before all others, and return what it gives."""
        return self._stack.enter_context(context)

    def leave(self) -> None:
        """Leave those that were entered."""
        self._given.clear()
        self._stack.close()

    def given(self, plugin: str) -> Any:
        """Return what the ``around_client`` of a plugin has yielded."""
        return self._given.get(plugin)


class _Hook(AbstractContextManager[Any]):
    """The context of one plugin; an error that it raises itself says which plugin it was."""

    def __init__(
        self, plugin: str, hook: str, around: Callable[..., Any] | None, *args: Any
    ) -> None:
        self._where = f"plugin {plugin!r}, {hook}"
        self._around = around
        self._args = args

    def __enter__(self) -> Any:
        with self._named():
            self._context = self._opened()
            return self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with self._named(but=error):
            return self._context.__exit__(kind, error, traceback)

    def _opened(self) -> AbstractContextManager[Any]:
        assert self._around is not None
        context: AbstractContextManager[Any] = self._around(*self._args)
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


def _module(hook: Callable[..., Any] | None) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    return getattr(hook, "__module__", None) or ""


def _here() -> InstanceInfo:
    info = instance_info()
    if info is None:
        raise SkyError("COMPUTE_POOL is not set: plugins are entered on the ranks of a cluster.")
    return info
