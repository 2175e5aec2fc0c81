"""A cluster that another kernel has started: what it is, by its row in the registry."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.environment.resolve import makes_environments
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.machines import every_machine_of
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.runtime_env import RuntimeEnv, Timeouts
from jupyter_sky.cluster.volumes import unattached
from jupyter_sky.cluster.volumes.unattached import NotWrittenBack
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import with_secrets
from jupyter_sky.notebook.errors import gone, no_cluster
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import parse_recorded
from jupyter_sky.notebook.options.plugins import make_plugins, plugin_names
from jupyter_sky.notebook.project.image import with_sources
from jupyter_sky.notebook.project.volumes import Unwritten, say_troubles
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.transport.event_loop import wait


def attach(
    row: RegistryRow,
    timeouts: Timeouts,
    provider_of: Callable[[CellOptions], Provider],
    discards: bool = False,
) -> tuple[Cluster | None, CellOptions]:
    """Return the cluster of a row, and the options with which it would be started again.

    Parameters
    ----------
    row, timeouts
        The row, and time limits.
    provider_of
        Returns the provider that options mean.
    discards
        Whether to remove what is left of a lost cluster without writing back its volumes.

    Returns
    -------
    tuple
        With ``None`` for the cluster if it is gone; its row is removed then.

    Raises
    ------
    SkyError
        If it exists, but cannot be used from here or now.
    """
    spec, runtime_env = attached_spec(row)
    options, provider = attached_options(row), _configured_provider(row, provider_of)
    volumes = () if discards else spec.volumes
    cluster = Cluster.attach(row, provider, runtime_env, timeouts, volumes=volumes)
    if cluster is None:
        return None, options
    try:
        cluster.packages.set_image(spec.image)
        cluster.mounts.remember(spec.volumes)
        return cluster, _with_values(options, cluster)
    except BaseException:  # nobody has it, while its nodes would stay up for it
        cluster.close()
        raise


def take_up_additions(cluster: Cluster, started: CellOptions) -> CellOptions:
    """Take up what other notebooks have added to a cluster that is connected.

    Parameters
    ----------
    started
        The options with which it would be started again, as far as is known here.

    Returns
    -------
    CellOptions
        Those options with the additions.
    """
    row = registry.with_id(cluster.id)
    if row is None:
        return started
    options = with_additions(started, row)
    cluster.packages.set_image(with_recorded_sources(cluster.spec.image, row))
    if options.volumes != started.volumes:
        cluster.mounts.remember([Volume.parse(each) for each in options.volumes])
    return _with_values(options, cluster)


def with_additions(options: CellOptions, row: RegistryRow) -> CellOptions:
    """Return options with the present size and additions of their cluster.

    Secrets stay, which its row lacks.
    """
    there = attached_options(row)
    return replace(
        options,
        nodes=there.nodes,
        hosts=there.hosts,
        pip=with_secrets(there.pip, options.pip),
        index=with_secrets(there.index, options.index),
        wheels=there.wheels,
        env=there.env,
        volumes=there.volumes,
    )


@contextlib.contextmanager
def visit(name: str) -> Iterator[Cluster]:
    """Connect to a cluster for a moment, without keeping it up.

    Raises
    ------
    UsageError
        When there is no such cluster.
    """
    row = registry.find(name)
    cluster = Cluster.visit(row, attached_provider(row)) if row and row.machines else None
    if cluster is None:
        raise UsageError(gone(name) if row and row.machines else no_cluster(name))
    try:
        yield cluster
    finally:
        cluster.close()


def attached_provider(row: RegistryRow) -> Provider:
    """Return the provider of a running cluster.

    Raises
    ------
    SkyError
        If this version does not know it.
    """
    if row.provider not in providers():
        raise SkyError(
            f"cluster {row.name} uses the provider {row.provider}, which this version of "
            "jupyter_sky does not know: use the version that started it."
        )
    return providers()[row.provider]


def _configured_provider(
    row: RegistryRow, provider_of: Callable[[CellOptions], Provider]
) -> Provider:
    """Return the provider of a running cluster as settings say, if they suit it.

    Nodes that join are rented as they say, and data is read with their credentials.
    """
    provider = attached_provider(row)
    with contextlib.suppress(UsageError):  # as for a group of hosts that this notebook lacks
        provider = provider_of(attached_options(row))
    return provider


def attached_spec(row: RegistryRow) -> tuple[ClusterSpec, RuntimeEnv]:
    """Return the specification of a running cluster, including its image and plugins."""
    typed = _line_options(row)
    base = row.spec.get("base") or {}
    wheels = [each for each in base.get("wheels", ()) if Path(each).is_file()]
    image = Image(
        # Where nodes have an environment, what is named was added once they were up.
        pip=typed.pip if makes_environments(attached_provider(row)) else (),
        like=base.get("like"),
        pins=tuple(base.get("pins", ())),
        wheels=wheels,
        constraints=tuple(base.get("constraints", ())),
    )
    image = with_recorded_sources(image, row)
    spec = ClusterSpec(
        name=row.name,
        accelerator=row.spec.get("accelerator"),
        image=image,
        volumes=attached_volumes(row),
    )
    spec, runtime_env = assemble(spec, make_plugins(_attached_plugins(row)))
    return spec, replace(runtime_env, added=tuple(row.spec.get("added", ())))


def with_recorded_sources(image: Image, row: RegistryRow) -> Image:
    """Return an image that also takes packages from where those of a cluster came from."""
    typed = _line_options(row)
    there = [each for each in typed.wheels if Path(each).expanduser().is_dir()]
    return with_sources(image, replace(typed, wheels=tuple(there)))


def attached_options(row: RegistryRow) -> CellOptions:
    """Return the options with which a running cluster would be started again."""
    typed = _line_options(row)
    return replace(
        typed,
        nodes=row.spec["nodes"],
        gpu=row.spec.get("accelerator"),
        cpus=row.spec.get("cpus"),
        memory=row.spec.get("memory"),
        procs_per_node=row.spec.get("procs_per_node"),
        plugin=_attached_plugins(row),
        provider=row.provider,
        # Settings for other providers may have named hosts.
        hosts=(typed.hosts or attached_hosts(row)) if row.provider == "ssh" else (),
        idle_timeout=row.spec.get("idle_timeout"),
        autostop=row.spec.get("autostop", False),
        replace=row.spec.get("replace", False),
        patience=row.spec.get("patience"),
        variable=tuple((each, "") for each in row.spec.get("base", {}).get("variables", ())),
    )


def attached_hosts(row: RegistryRow) -> tuple[str, ...]:
    """Return the hosts of a cluster in the syntax of ``--hosts``, with their numbers of ranks."""
    return tuple(
        f"{machine['host']}:{len(machine['nodes'][0]['ranks'])}"
        for machine in row.machines
        if "host" in machine
    )


def _with_values(options: CellOptions, cluster: Cluster) -> CellOptions:
    """Return options with the values of variables that nodes have."""
    known = cluster.variables.take_over([each for each, _ in options.variable])
    return replace(options, variable=tuple((dict(options.variable) | known).items()))


def _line_options(row: RegistryRow) -> CellOptions:
    """Return the options of the line that started a cluster, if the registry has it."""
    with contextlib.suppress(UsageError):
        return parse_recorded(row.spec.get("line", ""))
    return CellOptions()


def attached_volumes(row: RegistryRow) -> tuple[Volume, ...]:
    """Return the volumes of a running cluster."""
    return tuple(Volume.parse(each) for each in _line_options(row).volumes)


def _attached_plugins(row: RegistryRow) -> tuple[str, ...]:
    """Return the plugins of a running cluster, as typed if they were typed."""
    names = tuple(row.spec.get("plugins", ()))
    typed = _line_options(row).plugin or ()
    return typed if plugin_names(typed) == names else names


def end_lost(known: Cluster) -> None:
    """End what is left of a lost cluster, and say what became of one that this notebook had."""
    # Without all of its nodes no kernel can use it.
    if known.state.phase == "lost" and known.power.end_lost():
        if known.power.untold_loss:
            print(f"{known.power.untold_loss} What its ranks had is gone.")
    elif (other := registry.find(known.name)) and other.id != known.id:
        print(f"{known.name} was started again elsewhere. What its ranks had before is gone.")


def write_back_left(
    row: RegistryRow,
    provider_of: Callable[[CellOptions], Provider],
    unwritten: Unwritten,
    why: SkyError | None = None,
) -> None:
    """Write back what ranks have written, before a cluster is ended that cannot be attached.

    Parameters
    ----------
    row
        Its row.
    provider_of
        Returns the provider that options mean.
    unwritten
        What to do about files that rented machines alone have.
    why
        The error of attaching to it, if that was tried.

    Raises
    ------
    NotWrittenBack
        If the machines are kept.
    """
    if unwritten == "discard" or isinstance(why, ClusterStopped):
        return
    if unwritten == "keep" and isinstance(why, NotWrittenBack):  # that was tried just now
        raise why
    provider = _configured_provider(row, provider_of)
    machines, volumes = every_machine_of(row, provider), attached_volumes(row)
    troubles = wait(unattached.write_back(machines, volumes, provider))
    if unwritten == "keep":
        unattached.refuse_to_lose(row.name, provider, troubles)
    say_troubles(row.name, troubles)
