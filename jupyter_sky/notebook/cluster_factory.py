"""Makes a cluster's provider and specification from a cell's options and the settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.api import accelerators
from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.environment.imports import imports_from
from jupyter_sky.api.environment.resolve import able_to_complete, makes_environments, resolve
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import no_cluster
from jupyter_sky.notebook.options.definitions import JOB_OPTIONS, OPTION_NAMES, CellOptions
from jupyter_sky.notebook.options.plugins import make_plugins
from jupyter_sky.notebook.project.image import file_of, image_of
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.volume import Volume, check_volumes
from jupyter_sky.providers.choice import Candidate
from jupyter_sky.providers.cloud import Stoppable
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec, Image

if TYPE_CHECKING:
    from jupyter_sky.providers.aws import AWS

_SHAPE = ("nodes", "gpu", "procs_per_node", "provider", "hosts", "plugin")
"""The options that say what a cluster is made of; no cluster is started without any of them."""

_AWS_OPTIONS = (
    "region",
    "zone",
    "instance_type",
    "image_id",
    "spot",
    "max_price",
    "max_cost",
    "ssm",
)

_ONLY_AWS = (*_AWS_OPTIONS, "aws_profile", "spot_or_on_demand", "autostop")
_SLURM_OPTIONS = (*JOB_OPTIONS, "login", "modules", "conda", "container")
_MEANINGLESS = {
    "local": ("hosts", "include", *_ONLY_AWS, *_SLURM_OPTIONS),
    "ssh": (*_ONLY_AWS, *_SLURM_OPTIONS),
    "aws": ("hosts", *_SLURM_OPTIONS),
    "slurm": ("hosts", "volumes", *_ONLY_AWS),
}
"""The options that a provider has no use for; they are refused rather than ignored."""


@dataclass(frozen=True)
class ClusterPlace(Candidate):
    """A provider for a cluster, and what the cluster starts with there.

    Attributes
    ----------
    runtime_env
        The environment that its ranks enter before the first run.
    options
        The options that lead to this place.
    left_out
        Sentences about what its nodes will not have.
    """

    runtime_env: RuntimeEnv
    options: CellOptions
    left_out: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name for the user."""
        region = self.options.region if self.provider.name == "aws" else None
        return super().name + (f" in {region}" if region else "")


class ClusterFactory:
    """Makes providers and cluster specs.

    Parameters
    ----------
    settings
        The defaults of options.
    modules
        Returns the modules that the notebook imports.

    Attributes
    ----------
    of_scripts
        Modules that scripts import, or are, by the folder in which they are searched first: nodes
        get their packages as well.
    """

    def __init__(self, settings: Sky, modules: Callable[[], Set[str]] = frozenset) -> None:
        self._settings = settings
        self._of_notebook = modules
        self.of_scripts: defaultdict[Path, frozenset[str]] = defaultdict(frozenset)

    def complete(self, options: CellOptions, ended: CellOptions | None = None) -> CellOptions:
        """Return options to start a cluster with: a cell's options, completed by the settings.

        Parameters
        ----------
        options
            The options of the cell.
        ended
            Those of the cluster that had its name before, if that was found to be gone just now.

        Raises
        ------
        UsageError
            If neither describes the cluster, the cell has options that do not apply to the
            provider, or it would start elsewhere than before without anyone having said so.
        """
        completed = self._settings.with_cluster_defaults(options)
        if not describes_cluster(options) and not (
            completed.nodes or completed.gpu or completed.hosts
        ):
            start = "give the number of nodes, as in `--nodes 4`"
            if registry.rows():  # of other notebooks
                raise UsageError(f"{no_cluster(options.cluster)[:-1]}. To start one, {start}.")
            raise UsageError(f"no cluster is running: {start}.")
        check_provider_options(options, completed)
        if ended is not None:
            _check_is_meant(options, completed, ended)
        return completed

    def with_settings_for(self, options: CellOptions, started: CellOptions) -> CellOptions:
        """Return options with those settings that the provider of a started cluster has a use for.

        Parameters
        ----------
        options
            The options of the cell.
        started
            Those with which the cluster was started.
        """
        unused = _MEANINGLESS[_provider_names(started)[0]]
        typed = {field: getattr(options, field) for field in unused}
        return replace(self._settings.with_cluster_defaults(options), **typed)

    def places(
        self,
        name: str,
        choices: Sequence[CellOptions],
        former_price: float | None = None,
    ) -> list[ClusterPlace]:
        """Return the possible places of a new cluster, in the order of the options.

        Parameters
        ----------
        name
            The name of the cluster.
        choices
            Alternative completed options.
        former_price
            Dollars an hour of the lost cluster whose place it takes.
        """
        found, modules = [], cache(self._modules)
        for each in choices:
            for provider_name in _provider_names(each):
                chosen = _for_provider(each, provider_name)
                spots = (True, False) if chosen.spot_or_on_demand else (chosen.spot,)
                for here, spot in product(regions_of(chosen), spots):
                    provider = self.provider(replace(here, spot=spot))
                    image, left_out = image_of(here), tuple[str, ...]()
                    file_of(here)  # unreadable files are refused before anything starts
                    plugins = make_plugins(here.plugin)
                    if makes_environments(provider):
                        image, left_out = resolve(image, plugins, modules())
                    elif (able := able_to_complete(provider, plugins, modules)) is provider:
                        # Its nodes have an environment: what is named is added once they are up.
                        image = replace(image, pip=())
                    else:
                        provider = able
                    if each.volumes and not here.volumes:
                        left_out = (*left_out, f"{provider.name} nodes take no volumes.")
                    spec, runtime_env = self.new_spec(name, here, provider, image)
                    spec = replace(spec, former_price=former_price)
                    found.append(ClusterPlace(provider, spec, runtime_env, here, left_out))
        return found

    def _modules(self) -> Set[str]:
        found = set(self._of_notebook())
        for folder, modules in self.of_scripts.items():
            found |= imports_from(folder, modules)
        return found

    def provider(self, options: CellOptions) -> Provider:
        """Return the provider that completed options name."""
        name = _provider_names(options)[0]
        if name == "local":
            return Local(grace=self._settings.grace)
        if name == "aws":
            return self.aws(options)
        # Remote providers have many modules, which are only imported if needed.
        if name == "slurm":
            from jupyter_sky.providers.slurm.provider import Slurm

            return Slurm(
                **{each: getattr(options, each) for each in JOB_OPTIONS},
                login=options.login,
                conda=options.conda,
                container=options.container,
                modules=options.modules,
                python=self._settings.python,
                interface=self._settings.interface,
            )
        from jupyter_sky.providers.ssh.provider import SSH

        return SSH(
            hosts=self._settings.expand_groups(options.hosts),
            python=self._settings.python,
            interface=self._settings.interface,
            grace=max(SSH.grace, options.idle_timeout or 0.0),
        )

    def aws(self, options: CellOptions | None = None) -> AWS:
        """Return the AWS provider with completed options; by default, with the settings only.

        Raises
        ------
        UsageError
            If the setting ``Sky.aws`` has a key that `sky.AWS` does not accept.
        """
        from jupyter_sky.providers.aws import AWS

        options = options or self._settings.with_cluster_defaults(CellOptions())
        options = regions_of(options)[0]
        known = {field.name for field in fields(AWS)}
        if wrong := sorted(set(self._settings.aws) - known):
            known -= set(_AWS_OPTIONS)
            raise UsageError(
                f"Sky.aws has no setting {wrong[0]}: it has {', '.join(sorted(known))}."
            )
        chosen = {name: value for name in _AWS_OPTIONS if (value := getattr(options, name))}
        chosen |= {"profile": options.aws_profile} if options.aws_profile else {}
        return AWS(**{"python": self._settings.python, **self._settings.aws, **chosen})

    def new_spec(
        self, name: str, options: CellOptions, provider: Provider, image: Image
    ) -> tuple[ClusterSpec, RuntimeEnv]:
        """Return the specification of a new cluster, for `Cluster.start`.

        Parameters
        ----------
        name
            The name of the cluster.
        options
            Completed options.
        provider
            Where its nodes come from.
        image
            What to install on them.
        """
        spec = ClusterSpec(
            name=name,
            nodes=options.nodes or provider.default_nodes,
            procs_per_node=options.procs_per_node,
            accelerator=accelerators.parse(options.gpu) if options.gpu else None,
            cpus=options.cpus,
            memory=options.memory,
            image=image,
            idle_timeout=options.idle_timeout,
            # A setting for machines that can be stopped does not apply to others.
            autostop=options.autostop and isinstance(provider, Stoppable),
            replace=options.replace,
            patience=options.patience,
            unattended=self._settings.unattended,
            volumes=volumes_of(options, self._settings.volume_cache),
        )
        return assemble(spec, make_plugins(options.plugin))


def volumes_of(options: CellOptions, limit: float | None) -> tuple[Volume, ...]:
    """Return the volumes of options, with a limit in bytes for each node's disk."""
    return check_volumes([replace(Volume.parse(each), limit=limit) for each in options.volumes])


def describes_cluster(options: CellOptions) -> bool:
    """Return whether options describe a cluster."""
    return any(getattr(options, field) not in (None, ()) for field in _SHAPE)


def check_provider_options(options: CellOptions, completed: CellOptions) -> None:
    """Check that the options of a cell apply to its provider.

    Settings are not checked: settings for other providers may exist.

    Parameters
    ----------
    options
        The options of the cell.
    completed
        The completed options.

    Raises
    ------
    UsageError
        If an option does not apply, or there is no such provider.
    """
    named = _provider_names(completed)
    for provider in named:
        if provider not in _MEANINGLESS:
            raise UsageError(
                f"there is no provider {provider}: this version has {' and '.join(_MEANINGLESS)}."
            )
    for field in _MEANINGLESS[named[0]]:
        if getattr(options, field) and all(field in _MEANINGLESS[each] for each in named):
            option = OPTION_NAMES[field]
            typed = {field, "hosts"} if options.hosts else {field}
            fits = [each for each in _MEANINGLESS if typed.isdisjoint(_MEANINGLESS[each])]
            # The provider that nobody has typed is that of the settings, or the usual one.
            is_meant = not options.provider and len(fits) == 1
            instead = f", or add `--provider {fits[0]}`" if is_meant else ""
            raise UsageError(
                f"{option} does not apply to {' or '.join(named)} nodes: leave it out{instead}."
            )


def _check_is_meant(options: CellOptions, completed: CellOptions, ended: CellOptions) -> None:
    """Refuse to start a cluster elsewhere than the one that was there, unless a cell says where."""
    [instead, *others] = _provider_names(completed)
    if options.provider or options.hosts or ended.provider in (instead, *others):
        return
    before = f"--hosts {','.join(ended.hosts)}" if ended.hosts else f"--provider {ended.provider}"
    raise UsageError(
        f"the last cluster of this name had {format_count(ended.nodes or 1, 'node')} of the "
        f"provider {ended.provider}, and {instead} nodes would take their place: add `{before}` to "
        f"start there again, or `--provider {instead}`."
    )


def of_provider(options: CellOptions, name: str) -> CellOptions:
    """Return the part of options for a provider, if it is one of several that they name."""
    named = _provider_names(options)
    return _for_provider(options, name) if len(named) > 1 and name in named else options


def _for_provider(options: CellOptions, name: str) -> CellOptions:
    """Return options without those of other providers, which settings may add to any cluster."""
    defaults = CellOptions()
    others = {field: getattr(defaults, field) for field in _MEANINGLESS[name]}
    return replace(options, provider=options.provider and name, **others)


def asking_above(provider: Provider, price: float) -> Provider:
    """Return a provider that asks nobody about a price to which the user has agreed."""
    if provider.name != "aws":
        return provider
    from jupyter_sky.providers.aws import AWS

    assert isinstance(provider, AWS)
    return replace(provider, ask_above=max(provider.ask_above, price))


def regions_of(options: CellOptions) -> list[CellOptions]:
    """Return the same options for each of their regions, in order."""
    if options.region is None:
        return [options]
    return [replace(options, region=each) for each in options.region.split(",")]


def _provider_names(options: CellOptions) -> list[str]:
    return (options.provider or ("ssh" if options.hosts else "local")).split(",")
