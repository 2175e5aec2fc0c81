"""Plugins, which prepare frameworks: data, and small functions that are called at fixed points.

A plugin can be written in a notebook cell::

    def tracked(info):
        run = wandb.init(group=info.cluster)
        yield
        run.finish()

    sky.ComputePool(..., plugins=[sky.Plugin("wandb", around_app=tracked)])
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from jupyter_sky.api.call import Decorate
from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import Image

Around = Callable[[InstanceInfo], AbstractContextManager[Any] | Generator[Any, None, None]]


@dataclass(frozen=True)
class Plugin:
    """Prepares a framework on the nodes and in the ranks of a cluster.

    Parameters
    ----------
    name
        Its name in error messages. A cluster takes one plugin of each name.
    transform
        Takes the image and the cluster, and returns the image with what the framework needs as
        well; ``cluster.spec`` is the `ClusterSpec`.
    around_process
        A generator function with one ``yield``, or a function that returns a context manager; its
        argument is the `InstanceInfo`. Entered once in each rank, before the framework is imported.
    around_app
        The same around each process group: entered again when the group was broken.
    decorate
        A decorator for each function that runs on a rank.
    preload
        Modules that a node imports once, before it forks its ranks.

    Raises
    ------
    UsageError
        When an argument is not of that kind.
    """

    name: str
    transform: Callable[[Image, Any], Image] | None = None
    around_process: Around | None = None
    around_app: Around | None = None
    decorate: Decorate | None = None
    preload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError('a plugin has a name: write Plugin("wandb", around_app=...).')
        for hook in ("transform", "around_process", "around_app", "decorate"):
            value = getattr(self, hook)
            if value is not None and not callable(value):
                raise UsageError(f"plugin {self.name!r}: {hook}={value!r} is not a function.")
        if isinstance(self.preload, str):
            raise UsageError(f'plugin {self.name!r}: write preload=("{self.preload}",).')


def check_plugins(plugins: Iterable[Plugin]) -> tuple[Plugin, ...]:
    """Return what a user gave as ``plugins=[...]`` if it is a list of different plugins.

    Raises
    ------
    UsageError
        When it is not.
    """
    if isinstance(plugins, Plugin) or not isinstance(plugins, Iterable):
        raise UsageError("plugins is a list: write plugins=[sky.plugins.torch()].")
    checked: dict[str, Plugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            hint = f": write {plugin.__name__}()" if hasattr(plugin, "__name__") else ""
            raise UsageError(f"plugins has {plugin!r}, which is no plugin{hint}.")
        if plugin.name in checked:
            raise UsageError(f"plugins has {plugin.name!r} twice: leave one out.")
        checked[plugin.name] = plugin
    return tuple(checked.values())


def transform_image(plugins: Iterable[Plugin], image: Image, cluster: Any) -> Image:
    """Return the image with what each plugin adds to it, in their order."""
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
    return image


def decorators_of(plugins: Iterable[Plugin]) -> tuple[Decorate, ...]:
    """Return what plugins put around each function that runs on a rank; the first is outermost."""
    return tuple(plugin.decorate for plugin in plugins if plugin.decorate)
