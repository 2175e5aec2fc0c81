"""Combines the user's specification with plugins into what a cluster starts with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jupyter_sky.api.plugin import Plugin, check_connected, check_plugins, transform_image
from jupyter_sky.api.plugin_lifecycle import ClientLifecycle, PluginLifecycle
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.providers.buckets.volume import packages_for
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.serialization import blobs, pickling


@dataclass(frozen=True)
class PlannedCluster:
    """A cluster that does not exist yet, as an argument of ``Plugin.transform``.

    Attributes
    ----------
    spec
        What the user asked for.
    """

    spec: ClusterSpec


def assemble(spec: ClusterSpec, plugins: Iterable[Plugin]) -> tuple[ClusterSpec, RuntimeEnv]:
    """Apply plugins to the user's specification.

    Parameters
    ----------
    spec
        What the user asked for.
    plugins
        The plugins, in the order in which ranks enter them.

    Returns
    -------
    tuple
        The specification with the image that the plugins need, and the lifecycle for ranks.

    Raises
    ------
    UsageError
        If something is not a plugin, two have the same name, or they cannot be used together.
    """
    plugins = check_plugins(plugins)
    # Machines that are not rented may have more GPUs; ranks refuse that.
    gpus = spec.wanted_gpus.count if spec.wanted_gpus else 1
    check_connected(plugins, spec.nodes * (spec.procs_per_node or gpus))
    image = replace(spec.image, pip=(*spec.image.pip, *packages_for(spec.volumes)))
    image = transform_image(plugins, image, PlannedCluster(spec))
    # A plugin's hook for the notebook stays there: it may refer to objects that cannot be sent.
    lifecycle = PluginLifecycle(replace(each, around_client=None) for each in plugins)
    packed, parts = blobs.pack(pickled := pickling.dump(lifecycle, "the plugins"))
    runtime_env = RuntimeEnv(
        life=packed,
        blobs=parts,
        needs=pickled.needs,
        needed_modules=pickled.modules,
        plugins=tuple(plugin.name for plugin in plugins),
        preload=lifecycle.preload,
        modules=lifecycle.modules,
        together=any(plugin.around_app for plugin in plugins),
        connects=next((plugin.connects for plugin in plugins if plugin.connects), None),
        reforms=all(plugin.reforms for plugin in plugins),
        client=ClientLifecycle(plugins),
    )
    return replace(spec, image=image), runtime_env
