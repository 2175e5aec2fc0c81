"""What nodes use in the shared home: an interpreter, our code, the working folder."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.local.variables import image_variables
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.slurm.login import LoginNode
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.machine import in_thread, submit
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.files import SentFiles
from jupyter_sky.providers.ssh.setup.host_progress import HostProgress
from jupyter_sky.providers.ssh.setup.prepare import prepare_host
from jupyter_sky.serialization.user_modules import ImportPaths


@dataclass(frozen=True)
class NodeEnvironment:
    """The environment of nodes.

    Attributes
    ----------
    starts
        The folder for starts.
    python, code
        The interpreter, and the folder of our package.
    cwd
        The folder that ranks work in.
    env
        Environment variables of all ranks.
    sys_path, python_path, keeps
        As in `jupyter_sky.transport.protocol.agent_spec.AgentSpec`.
    """

    starts: str
    python: str
    code: str
    cwd: str
    env: Mapping[str, str]
    sys_path: tuple[str, ...] = ()
    python_path: str | None = None
    keeps: tuple[str, ...] = field(default=())

    def of_the_agent(self) -> dict[str, Any]:
        """Return the fields of `AgentSpec` for it."""
        names = ("cwd", "env", "sys_path", "python_path", "keeps")
        return {name: getattr(self, name) for name in names}


async def environment(
    at: LoginNode, cluster: RunningCluster, python: str | None, is_bare: bool, progress: Progress
) -> NodeEnvironment:
    """Return the notebook's own environment, or make one on a login node over SSH.

    Parameters
    ----------
    cluster
        The cluster of the nodes.
    python
        The interpreter to use instead.
    is_bare
        Whether ranks bring their own: this one is then only for agents.

    Raises
    ------
    SkyError
        If it cannot be made.
    """
    if is_bare:
        cluster = bare(cluster)
    if not at.host:
        return await asyncio.to_thread(_own, cluster.spec, python, is_bare)
    connection = pool.named(at.host)
    steps = HostProgress([str(connection.target)], progress)
    relay = Relay(1)
    preparing = submit(prepared, connection, cluster, python, relay, steps)
    try:
        return await asyncio.wrap_future(preparing)
    except asyncio.CancelledError:
        # Stop everything that it is doing there.
        steps.stop()
        await in_thread(connection.abort)
        raise
    except SkyError as error:
        raise SkyError(f"{at.host}: {error}") from None
    finally:
        await in_thread(relay.close)


def bare(cluster: RunningCluster) -> RunningCluster:
    """Return a cluster as it is for nodes whose ranks bring their own packages."""
    spec = cluster.spec
    image = Image(like=None, env=spec.image.env, includes=spec.image.includes)
    image = replace(image, shell_vars=spec.image.shell_vars)
    return replace(cluster, spec=replace(spec, image=image))


def _own(spec: ClusterSpec, python: str | None, is_bare: bool) -> NodeEnvironment:
    here = ImportPaths.here()
    return NodeEnvironment(
        starts=str(home() / "slurm"),
        python=python or sys.executable,
        code=str(Path(jupyter_sky.__file__).parents[1]),
        cwd=here.folder,
        env=image_variables(spec.image),
        sys_path=_import_path(here.path, has_own=bool(python) or is_bare),
        python_path=os.environ.get("PYTHONPATH"),
    )


def _import_path(paths: Iterable[str], has_own: bool) -> tuple[str, ...]:
    """Return the import paths of nodes; another interpreter has its own packages."""
    prefixes = sys.prefix, sys.base_prefix
    if has_own:
        paths = [each for each in paths if not any(map(Path(each).is_relative_to, prefixes))]
    return tuple(paths)


def prepared(
    shell: HostShell,
    cluster: RunningCluster,
    python: str | None,
    relay: Relay,
    steps: HostProgress,
) -> NodeEnvironment:
    """Prepare a shared home for nodes, and return their environment; this blocks.

    Parameters
    ----------
    shell
        Runs scripts on the computer of the home.
    cluster
        The cluster of the nodes.
    python
        The interpreter to use; ``None`` makes an environment.
    relay
        Sends files that several homes need.
    steps
        Shows the progress.

    Raises
    ------
    SkyError
        If that fails.
    """
    host, spec = str(shell.target), cluster.spec
    # Slurm knows the size of nodes; CUDA is needed if they have GPUs.
    anywhere = replace(spec, cpus=None, memory=None, accelerator=None)
    made = prepare_host(
        shell,
        anywhere,
        python,
        SentFiles.for_cluster(cluster),
        relay,
        partial(steps.report, host),
        steps.announce,
        cuda=spec.wanted_gpus is not None,
    )
    shell.run(f"mkdir -p {shlex.quote(made.work)}")
    return NodeEnvironment(
        starts=f"{made.facts.cache_folder}/slurm",
        python=made.python,
        code=made.code,
        cwd=made.work,
        env={**spec.image.env, **made.variables},
        keeps=made.keeps,
    )
