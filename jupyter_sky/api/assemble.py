"""What a cluster starts with, from what a user asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jupyter_sky.api.plugin import Plugin, check_plugins, transform_image
from jupyter_sky.api.plugin_lifecycle import ClientLifecycle, PluginLifecycle
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.providers.buckets.volume import packages_for
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.serialization import blobs, pickling


@dataclass(frozen=True)
class PlannedCluster:
    """A cluster that does not exist yet, as ``Plugin.transform`` is given it.

    Attributes
    ----------
    spec
        What the user asked for.
    """

    spec: ClusterSpec


def assemble(spec: ClusterSpec, plugins: Iterable[Plugin]) -> tuple[ClusterSpec, RuntimeEnv]:
    """Apply plugins to what a user asked for.

    Parameters
    ----------
    spec
        What the user asked for.
    plugins
        In the order in which ranks enter them.

    Returns
    -------
    tuple
        The spec with the image that the plugins need, and what ranks enter before the first run.

    Raises
    ------
    UsageError
        When something is no plugin, or two have the same name.
    """
    plugins = check_plugins(plugins)
    image = replace(spec.image, pip=(*spec.image.pip, *packages_for(spec.volumes)))
    image = transform_image(plugins, image, PlannedCluster(spec))
    # What a plugin does in the notebook stays there: it may refer to what cannot be sent.
    lifecycle = PluginLifecycle(replace(each, around_client=None) for each in plugins)
    packed, parts = blobs.pack(pickled := pickling.dump(lifecycle, "the plugins"))
    runtime_env = RuntimeEnv(
        life=packed,
        blobs=parts,
        needs=pickled.needs,
        plugins=tuple(plugin.name for plugin in plugins),
        preload=lifecycle.preload,
        modules=lifecycle.modules,
        together=any(plugin.around_app for plugin in plugins),
        reforms=all(plugin.reforms for plugin in plugins),
        client=ClientLifecycle(plugins),
    )
    return replace(spec, image=image), runtime_env
