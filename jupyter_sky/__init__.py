"""Run a notebook cell on a cluster, with torch.distributed already formed.

In a notebook, ``%load_ext jupyter_sky`` and ``%%sky --nodes 4`` above a cell; in a script,
``import jupyter_sky as sky`` and a :class:`ComputePool`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from jupyter_sky import plugins
    from jupyter_sky.api import accelerators
    from jupyter_sky.api.calls.worker import Worker
    from jupyter_sky.api.checkpoints.checkpoint import load, restored, save
    from jupyter_sky.api.compute import compute, function, gather
    from jupyter_sky.api.instance import InstanceInfo, instance_info
    from jupyter_sky.api.interruption import on_interruption
    from jupyter_sky.api.output import silent, stderr, stdout
    from jupyter_sky.api.plugin import Plugin
    from jupyter_sky.api.pool import Compute, ComputePool
    from jupyter_sky.api.shard import shard
    from jupyter_sky.api.volumes.mounted import volume
    from jupyter_sky.cluster.errors import RankLost, RemoteError, RunStopped
    from jupyter_sky.errors import ClusterLost, SkyError, UsageError
    from jupyter_sky.plugins import integrations
    from jupyter_sky.providers.aws import AWS
    from jupyter_sky.providers.buckets.volume import Volume
    from jupyter_sky.providers.choice import Spec
    from jupyter_sky.providers.local import Local
    from jupyter_sky.providers.slurm.provider import Slurm
    from jupyter_sky.providers.spec import Image, PipIndex
    from jupyter_sky.providers.ssh.provider import SSH
    from jupyter_sky.transport.metrics.metric_log import log
    from jupyter_sky.transport.preemption import Interruption

__version__ = "0.2.0.dev1"

__all__ = [
    "AWS",
    "SSH",
    "ClusterLost",
    "Compute",
    "ComputePool",
    "Image",
    "InstanceInfo",
    "Interruption",
    "Local",
    "PipIndex",
    "Plugin",
    "RankLost",
    "RemoteError",
    "RunStopped",
    "SkyError",
    "Slurm",
    "Spec",
    "UsageError",
    "Volume",
    "Worker",
    "accelerators",
    "compute",
    "function",
    "gather",
    "instance_info",
    "integrations",
    "load",
    "log",
    "on_interruption",
    "plugins",
    "restored",
    "save",
    "shard",
    "silent",
    "stderr",
    "stdout",
    "volume",
]

# Where each public name lives, as an entry point is written: "module:name", or "module".
# Importing on first use keeps `import jupyter_sky` cheap, on a node as in a kernel.
_HOMES = {
    "AWS": "jupyter_sky.providers.aws:AWS",
    "SSH": "jupyter_sky.providers.ssh.provider:SSH",
    "ClusterLost": "jupyter_sky.errors:ClusterLost",
    "Compute": "jupyter_sky.api.pool:Compute",
    "ComputePool": "jupyter_sky.api.pool:ComputePool",
    "Image": "jupyter_sky.providers.spec:Image",
    "InstanceInfo": "jupyter_sky.api.instance:InstanceInfo",
    "Interruption": "jupyter_sky.transport.preemption:Interruption",
    "Local": "jupyter_sky.providers.local:Local",
    "PipIndex": "jupyter_sky.providers.spec:PipIndex",
    "Plugin": "jupyter_sky.api.plugin:Plugin",
    "RankLost": "jupyter_sky.cluster.errors:RankLost",
    "RemoteError": "jupyter_sky.cluster.errors:RemoteError",
    "RunStopped": "jupyter_sky.cluster.errors:RunStopped",
    "SkyError": "jupyter_sky.errors:SkyError",
    "Slurm": "jupyter_sky.providers.slurm.provider:Slurm",
    "Spec": "jupyter_sky.providers.choice:Spec",
    "UsageError": "jupyter_sky.errors:UsageError",
    "Volume": "jupyter_sky.providers.buckets.volume:Volume",
    "Worker": "jupyter_sky.api.calls.worker:Worker",
    "accelerators": "jupyter_sky.api.accelerators",
    "compute": "jupyter_sky.api.compute:compute",
    "function": "jupyter_sky.api.compute:function",
    "gather": "jupyter_sky.api.compute:gather",
    "instance_info": "jupyter_sky.api.instance:instance_info",
    "integrations": "jupyter_sky.plugins.integrations",
    "load": "jupyter_sky.api.checkpoints.checkpoint:load",
    "log": "jupyter_sky.transport.metrics.metric_log:log",
    "on_interruption": "jupyter_sky.api.interruption:on_interruption",
    "plugins": "jupyter_sky.plugins",
    "restored": "jupyter_sky.api.checkpoints.checkpoint:restored",
    "save": "jupyter_sky.api.checkpoints.checkpoint:save",
    "shard": "jupyter_sky.api.shard:shard",
    "silent": "jupyter_sky.api.output:silent",
    "stderr": "jupyter_sky.api.output:stderr",
    "stdout": "jupyter_sky.api.output:stdout",
    "volume": "jupyter_sky.api.volumes.mounted:volume",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Bring ``%%sky`` and ``%sky`` into a notebook: what ``%load_ext jupyter_sky`` calls.

    Not into a rank, where a cell may say it, too: each rank would start clusters of its own.
    """
    if getattr(ipython, "is_rank", False):
        return
    from jupyter_sky.serialization import garbage

    with garbage.not_searched_for():  # imports make none, and it takes a fifth of their time
        from jupyter_sky.notebook import extension
    extension.load(ipython)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """Take the magics away again: what ``%unload_ext jupyter_sky`` calls."""
    from jupyter_sky.notebook import extension

    extension.unload(ipython)
