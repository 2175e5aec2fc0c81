"""Adds plugins to a running cluster, if no variables are lost by that."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.assemble import PlannedCluster, assemble
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.api.environment.resolve import makes_environments, resolve
from jupyter_sky.api.plugin import Plugin, transform_image
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.formatting import format_list
from jupyter_sky.notebook.options.plugins import make_plugins, plugin_names
from jupyter_sky.notebook.project.install import install
from jupyter_sky.providers.spec import Image
from jupyter_sky.serialization import blobs, imported_versions, pickling


def costs_of(words: Sequence[str], has: Sequence[str]) -> str:
    """Return why plugins cannot be added to a running cluster; empty if they can.

    Parameters
    ----------
    words
        The plugins, as typed.
    has
        The names of the cluster's plugins.
    """
    if not words:
        return "ranks enter plugins when they begin"
    every = {each.name: each for each in make_plugins([*has, *words])}
    for name in plugin_names(words):
        if name in has:
            return f"ranks have entered {name} already"
        if every[name].bootstrap:
            return f"{name} prepares machines before their ranks begin"
    if fixed := [each.name for each in every.values() if not each.reforms]:
        return f"processes enter {fixed[0]} when they begin"
    return ""


def add_plugins(shell: InteractiveShell, cluster: Cluster, words: Sequence[str]) -> None:
    """Add plugins to a cluster, and report the changes.

    Raises
    ------
    SkyError
        If they cannot be installed, or ranks cannot enter them; the cluster is then as it was.
    """
    cluster.plugins.check_idle()
    has = cluster.runtime_env.plugins
    every = make_plugins([*has, *words])
    new = [each for each in every if each.name not in has]
    names = format_list([each.name for each in new])
    before = cluster.spec.image
    base = before
    if makes_environments(cluster.provider):
        base, _ = resolve(replace(before, like="imports"), new, ())
        base = replace(base, like=before.like)
    image = transform_image(new, base, PlannedCluster(cluster.spec))
    wanted = [each for each in image.pip if each not in before.pip]
    pins = [each for each in image.pins if each not in before.pins]
    if needed := [*_lacking(cluster, wanted), *pins]:
        install(shell, cluster, needed, image)
    began = time.monotonic()
    with ProgressLine(shell, cluster.name) as line:
        line.update(f"adding {names}")
        try:
            _enter(cluster, every, new, image)
        except KeyboardInterrupt:
            raise Interrupted(f"adding {names} was stopped; {cluster.name} is as it was.") from None
        told = f"added {names} in {time.monotonic() - began:.1f} s; variables stay"
        if any(each.around_app for each in every):
            told += ", and the process group is a new one"
        line.update(told)


def _lacking(cluster: Cluster, requirements: Sequence[str]) -> list[str]:
    """Return the requirements that ranks lack; for a name alone, any version will do."""
    names = [each for each in requirements if re.fullmatch(r"[\w.-]+", each)]
    call, parts = blobs.pack(pickling.dump(partial(imported_versions.lacking, names), "a question"))
    run = cluster.run(Task(cluster.all_ranks, call=call, blobs=parts, show=()))
    run.follow()
    there = set(names) - {name for lacks in run.values().values() for name in lacks}
    return [each for each in requirements if each not in there]


def _enter(cluster: Cluster, every: Sequence[Plugin], new: Sequence[Plugin], image: Image) -> None:
    client = cluster.runtime_env.client
    _, runtime_env = assemble(cluster.spec, every)
    cluster.plugins.enter(replace(runtime_env, client=client), image)
    if client:
        client.enter_further(new, cluster)
