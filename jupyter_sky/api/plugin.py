"""Plugins, which prepare frameworks: data, and small functions that are called at fixed points.

A plugin can be written in a notebook cell::

    def tracked(info):
        run = wandb.init(group=info.cluster)
        yield
        run.finish()

    sky.ComputePool(..., plugins=[sky.Plugin("wandb", around_app=tracked)])

It can also be built step by step::

    sky.Plugin.create("wandb").with_bootstrap(lambda cluster: ["df -h ."]).with_around_app(tracked)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from jupyter_sky.api.call import Decorate
from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.spec import Image

Transform = Callable[[Image, Any], Image]
Bootstrap = Callable[[Any], Iterable[str]]
Around = Callable[[InstanceInfo], AbstractContextManager[Any] | Generator[Any, None, None]]
AroundClient = Callable[[Any, Any], AbstractContextManager[Any] | Generator[Any, None, None]]

HOOKS = ("transform", "bootstrap", "around_process", "around_app", "around_client", "decorate")
"""What a plugin can have functions for."""


@dataclass(frozen=True)
class Plugin:
    """Prepares a framework on the nodes and in the ranks of a cluster.

    Parameters
    ----------
    name
        Its name in error messages. A cluster takes one plugin of each name.
    transform
        Takes the image and the cluster, and returns an image that includes what the framework
        needs; ``cluster.spec`` is the `ClusterSpec`.
    bootstrap
        Takes the cluster, and returns shell commands that each machine runs once, after
        installation and before its ranks start.
    around_process
        A generator function with one ``yield``, or a function that returns a context manager; its
        argument is the `InstanceInfo`. Entered once in each rank, before the framework is imported.
    around_app
        The same, around each process group: entered again after the group was broken.
    around_client
        The same, in the notebook: entered when the cluster is up, and left before it ends. Its
        arguments are the `ComputePool` (``None`` for a cluster of ``%%sky`` cells) and the cluster.
    decorate
        A decorator for each function that runs on a rank.
    preload
        Modules that a node imports once, before it forks its ranks.
    reforms
        Whether ``around_app`` can be entered again in a process that has left it. If not, as with
        JAX, all ranks restart with empty namespaces when one is lost or nodes are added.
    connects
        The library by which ``around_app`` connects the ranks at the group's ``head_port``, like
        ``"torch"``, if it does: a cluster of several ranks takes plugins for one such library.

    Raises
    ------
    UsageError
        If an argument is of the wrong kind.
    """

    name: str
    transform: Transform | None = None
    bootstrap: Bootstrap | None = None
    around_process: Around | None = None
    around_app: Around | None = None
    around_client: AroundClient | None = None
    decorate: Decorate | None = None
    preload: tuple[str, ...] = ()
    reforms: bool = True
    connects: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError('a plugin needs a name: write Plugin("wandb", around_app=...).')
        for hook in HOOKS:
            value = getattr(self, hook)
            if value is not None and not callable(value):
                raise UsageError(f"plugin {self.name!r}: {hook}={value!r} is not a function.")
        if isinstance(self.preload, str):
            raise UsageError(f'plugin {self.name!r}: write preload=("{self.preload}",).')

    @classmethod
    def create(cls, name: str) -> Plugin:
        """Return a plugin that does nothing; its methods ``with_…`` return plugins that do more."""
        return cls(name)

    def with_image_transform(self, transform: Transform) -> Plugin:
        """Return this plugin with a ``transform``."""
        return replace(self, transform=transform)

    def with_bootstrap(self, bootstrap: Bootstrap) -> Plugin:
        """Return this plugin with a ``bootstrap``."""
        return replace(self, bootstrap=bootstrap)

    def with_around_process(self, around: Around) -> Plugin:
        """Return this plugin with an ``around_process``."""
        return replace(self, around_process=around)

    def with_around_app(self, around: Around) -> Plugin:
        """Return this plugin with an ``around_app``."""
        return replace(self, around_app=around)

    def with_around_client(self, around: AroundClient) -> Plugin:
        """Return this plugin with an ``around_client``."""
        return replace(self, around_client=around)

    def with_decorator(self, decorate: Decorate) -> Plugin:
        """Return this plugin with a ``decorate``."""
        return replace(self, decorate=decorate)


def check_plugins(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return the user's ``plugins=[...]``, checked to be a list of distinct plugins.

    Raises
    ------
    UsageError
        If it is not.
    """
    if isinstance(plugins, Plugin | str) or not isinstance(plugins, Iterable):
        raise UsageError("plugins is a list: write plugins=[sky.plugins.torch()].")
    checked: dict[str, Plugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            name = getattr(plugin, "__name__", f"sky.plugins.{plugin}")
            hint = (
                f"write {name}()" if isinstance(plugin, str) or callable(plugin) else "leave it out"
            )
            raise UsageError(f"plugins has {plugin!r}, which is not a plugin: {hint}.")
        if plugin.name in checked:
            raise UsageError(f"plugins has {plugin.name!r} twice: leave one out.")
        checked[plugin.name] = plugin
    return tuple(checked.values())


def check_connected(plugins: Iterable[Plugin], ranks: int) -> None:
    """Refuse plugins that would connect ranks by several libraries, all at the same port.

    Parameters
    ----------
    plugins
        The plugins of a cluster.
    ranks
        How many ranks it has; one alone is not connected.

    Raises
    ------
    UsageError
        If there are such plugins, and several ranks.
    """
    found: dict[str, str] = {}
    for plugin in plugins:
        if plugin.connects:
            found.setdefault(plugin.connects, plugin.name)
    if len(found) > 1 and ranks > 1:
        one, other, *_ = found.values()
        raise UsageError(
            f"plugins has {one!r} and {other!r}, and only one of them can connect "
            f"{format_count(ranks, 'rank')}: leave the other out, or use a single rank."
        )


def transform_image(plugins: Iterable[Plugin], image: Image, cluster: Any) -> Image:
    """Return the image with the additions of all plugins, in order."""
    plugins = tuple(plugins)
    for plugin in plugins:
        if plugin.transform is None:
            continue
        transformed = plugin.transform(image, cluster)
        if not isinstance(transformed, Image):
            raise UsageError(
                f"plugin {plugin.name!r}: transform returned {type(transformed).__name__}; "
                "return the image, like dataclasses.replace(image, pip=[*image.pip, ...])."
            )
        image = transformed
    commands = [command for plugin in plugins for command in _commands(plugin, cluster)]
    return replace(image, bootstrap=(*image.bootstrap, *commands))


def _commands(plugin: Plugin, cluster: Any) -> tuple[str, ...]:
    commands = () if plugin.bootstrap is None else plugin.bootstrap(cluster)
    if isinstance(commands, str) or not all(isinstance(each, str) for each in commands):
        raise UsageError(
            f"plugin {plugin.name!r}: bootstrap returned {commands!r}; return a list of shell "
            'commands, like ["mkdir -p /data"].'
        )
    return tuple(commands)


def decorators_of(plugins: Iterable[Plugin]) -> tuple[Decorate, ...]:
    """Return the decorators of plugins for functions on ranks, the outermost first."""
    return tuple(plugin.decorate for plugin in plugins if plugin.decorate)
