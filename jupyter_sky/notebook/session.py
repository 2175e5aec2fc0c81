"""The clusters of one notebook: which one a cell means, and how it comes to be."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api import accelerators
from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_dollars
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.kernel import cluster_name
from jupyter_sky.notebook.options.definitions import CellOptions, as_line, parse_cell
from jupyter_sky.notebook.output.progress import ProgressLine
from jupyter_sky.notebook.panel.manager import PanelManager
from jupyter_sky.notebook.validation import check_fit
from jupyter_sky.providers import providers
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.providers.ssh import SSH
from jupyter_sky.providers.ssh.connection.targets import Target, parse

_SHAPE = ("nodes", "gpu", "procs_per_node", "provider", "hosts", "plugin")
"""What a cell says of a cluster that none is started without."""

_OF_AWS = ("region", "zone", "instance_type", "image_id", "spot", "max_price", "max_cost")

_NOT_FOR = {
    "local": ("hosts", *_OF_AWS),
    "ssh": _OF_AWS,
    "aws": ("hosts",),
}
"""Options that have no meaning for a provider; nothing that was typed is passed over."""


class Session:
    """The clusters that a notebook is connected to.

    Parameters
    ----------
    shell
        The shell of the notebook.
    settings
        What holds for a cluster where a cell says nothing.

    Attributes
    ----------
    on_connect
        Called with a cluster when this notebook is connected to it, and with whether it is new.
    """

    def __init__(self, shell: InteractiveShell, settings: Sky) -> None:
        self._shell = shell
        self.settings = settings
        self.panels = PanelManager(shell)
        self.on_connect: Callable[[Cluster, bool], None] = lambda cluster, fresh: None
        self._clusters: dict[str, Cluster] = {}
        self.started: dict[str, CellOptions] = {}
        self._current: str | None = None

    @property
    def own_name(self) -> str:
        """The name of the notebook's own cluster."""
        return cluster_name(self._shell)

    def cluster(self, options: CellOptions) -> Cluster:
        """Return the cluster that a cell means; it comes up if it has to.

        Raises
        ------
        UsageError
            When the options do not fit the running cluster, or nothing says what to start.
        """
        name = options.cluster or self._current or self.own_name
        cluster = self.find(name)
        if cluster is None:
            completed = self._completed(name, options)
            _check_options(options, _provider_name(completed))
            cluster = self._start(name, completed)
        else:
            check_fit(cluster, options, self.settings.expanded(options.hosts))
        self._current = name
        return cluster

    def find(self, name: str | None = None) -> Cluster | None:
        """Return a cluster that is up: a known one, or one that another kernel left."""
        name = name or self._current or self.own_name
        known = self._clusters.get(name)
        if known is not None:
            if known.alive and not known.outdated:
                return known
            del self._clusters[name]
            known.close()
            if known.state.phase is ClusterPhase.LOST:
                # Without all of its nodes it is of no use to any kernel.
                known.down()
                return None
        return self._attach(name)

    @contextlib.contextmanager
    def visit(self, name: str) -> Iterator[Cluster]:
        """Give a cluster for a moment; one that this notebook is not connected to is not taken up.

        Raises
        ------
        UsageError
            When there is no such cluster.
        """
        known = self._clusters.get(name)
        if known is not None and known.alive:
            yield known
            return
        row = registry.find(name)
        cluster = Cluster.visit(row, _provider_of(row)) if row and row.machines else None
        if cluster is None:
            raise UsageError(no_cluster(name))
        try:
            yield cluster
        finally:
            cluster.close()

    def revive(self) -> Cluster | None:
        """Start the current cluster anew if it was lost, and return it."""
        known = self._clusters.get(self.current_name)
        if known is None or known.state.phase is not ClusterPhase.LOST:
            return None
        self.find(known.name)
        return self._start(known.name, self.started[known.name])

    def hosts(self, named: tuple[str, ...]) -> tuple[Target, ...]:
        """Return hosts: those that are named, or else the settings', or the current cluster's."""
        named = named or self.settings.hosts or ()
        if not named and (row := registry.find(self.current_name)):
            named = _hosts(row)
        return parse(self.settings.expanded(named))

    def known(self) -> list[Cluster]:
        """Return the clusters that this notebook is connected to."""
        return list(self._clusters.values())

    @property
    def current_name(self) -> str:
        """The name of the cluster that a cell without ``--cluster`` means."""
        return self._current or self.own_name

    def use(self, cluster: Cluster) -> None:
        """Make a cluster the one that cells mean."""
        self._current = cluster.name

    def down(self, name: str | None = None) -> str:
        """End a cluster and return what there is to say of it."""
        asked, name = name, name or self.current_name
        if broken := registry.find_broken(name):
            registry.remove(broken.id)
            return (
                f"{name}: forgotten; what the registry said of it could not be made out, so see "
                "whether anything of it still runs"
            )
        row = registry.find(name)
        try:
            cluster = self._clusters.get(name) or self.find(name)
        except SkyError:
            if row is None or row.provider not in providers() or row.is_elsewhere:
                raise
            cluster = None
        if cluster is not None:
            left = cluster.down()
            self.panels.settle(cluster)
        elif row is not None:
            # It cannot be used, or has just turned out to be gone.
            left = Cluster.remove(row, providers()[row.provider])
        else:
            raise UsageError(no_cluster(asked, "end"))
        self._clusters.pop(name, None)
        self.started.pop(name, None)
        if self._current == name:
            self._current = None
        if left:
            return (
                f"{name}: ended, but {', '.join(left)} could not be reached: what is left there "
                "ends by itself"
            )
        return f"{name}: ended, nothing of it is left"

    def close(self) -> None:
        """Let go of all clusters; they go on until their time is over."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def _completed(self, name: str, options: CellOptions) -> CellOptions:
        """Return what a cluster starts with whose cell says ``options``."""
        nothing_said = all(getattr(options, field) in (None, ()) for field in _SHAPE)
        if nothing_said and name in self.started:
            # What was lost is had again as it was; of what costs money the price is said first.
            return self.started[name]
        options = self.settings.of_clusters(options)
        if nothing_said and not (options.nodes or options.gpu or options.hosts):
            raise UsageError(
                "no cluster is running yet: say how many nodes it should have, as in "
                "`%%sky --nodes 4`."
            )
        return options

    def _start(self, name: str, options: CellOptions) -> Cluster:
        provider = self.provider(options)
        spec = ClusterSpec(
            name=name,
            nodes=options.nodes or provider.usual_nodes,
            procs_per_node=options.procs_per_node,
            accelerator=accelerators.parse(options.gpu) if options.gpu else None,
            cpus=options.cpus,
            memory=options.memory,
            image=Image(pip=options.pip or ()),
            idle_timeout=options.idle_timeout,
            replace=options.replace,
        )
        spec, runtime_env = assemble(spec, _plugins(options.plugin))
        self.panels.prepare()
        with ProgressLine(self._shell, name) as progress:
            try:
                cluster = Cluster.start(
                    spec, provider, runtime_env, progress.say, self.settings.timeouts()
                )
            except KeyboardInterrupt:
                raise Interrupted(
                    f"{name} was stopped while it started; nothing of it is left."
                ) from None
            progress.say(f"{describe(cluster)}, ready in {progress.seconds:.1f} s")
        _warn(cluster)
        registry.record_line(cluster.id, as_line(options))
        self._clusters[name] = cluster
        self.started[name] = options
        self.on_connect(cluster, True)
        if self.settings.panel:
            self.panels.show(cluster)
        return cluster

    def _attach(self, name: str) -> Cluster | None:
        row = registry.find(name)
        if row is None or not row.machines:
            return None
        provider = _provider_of(row)
        plugins = tuple(row.spec.get("plugins", ()))
        typed = _typed(row)
        gpu = row.spec["accelerator"]
        wanted = ClusterSpec(name=name, accelerator=gpu, image=Image(pip=typed.pip))
        spec, runtime_env = assemble(wanted, _plugins(plugins))
        cluster = Cluster.attach(row, provider, runtime_env, self.settings.timeouts())
        if cluster is None:
            return None
        cluster.set_image(spec.image)
        with ProgressLine(self._shell, name) as progress:
            progress.say(f"{describe(cluster)}, still up: connected again")
        _warn(cluster)
        if name not in self.started:  # what this kernel has, it has assigned since
            cluster.sync.assigned(self._shell.user_ns, self._shell.user_ns)
        self._clusters[name] = cluster
        self.started[name] = replace(
            typed,  # what a new one in its place has to be like, and may cost
            nodes=row.spec["nodes"],
            gpu=gpu,
            cpus=row.spec["cpus"],
            memory=row.spec["memory"],
            procs_per_node=row.spec["procs_per_node"],
            plugin=plugins,
            provider=row.provider,
            hosts=typed.hosts or (_hosts(row) if row.provider == "ssh" else ()),
            idle_timeout=row.spec.get("idle_timeout"),
            replace=row.spec.get("replace", False),
        )
        self.on_connect(cluster, False)
        return cluster

    def provider(self, options: CellOptions) -> Provider:
        """Return where nodes come from, as settings and options describe it."""
        name = _provider_name(options)
        if name == "local":
            return Local(grace=self.settings.grace)
        if name == "aws":
            return self.aws(options)
        return SSH(
            hosts=self.settings.expanded(options.hosts),
            python=self.settings.python,
            interface=self.settings.interface,
        )

    def aws(self, options: CellOptions | None = None) -> AWS:
        """Return AWS as settings and options describe it."""
        options = options or self.settings.of_clusters(CellOptions())
        known = {field.name for field in fields(AWS)}
        if wrong := sorted(set(self.settings.aws) - known):
            raise UsageError(
                f"Sky.aws has no {wrong[0]}: there are {', '.join(sorted(known - set(_OF_AWS)))}."
            )
        chosen = {name: value for name in _OF_AWS if (value := getattr(options, name))}
        return AWS(**{"python": self.settings.python, **self.settings.aws, **chosen})


def describe(cluster: Cluster) -> str:
    """Return what a cluster is made of, in a few words."""
    nodes, ranks = len(cluster.state.nodes), len(cluster.all_ranks)
    gpus = sorted({node.gpu for node in cluster.state.nodes if node.gpu})
    versions = dict(cluster.state.versions)
    parts = [format_count(nodes, f"{cluster.provider.name} node")]
    parts.append(f"{format_count(ranks, 'rank')} on {', '.join(gpus) if gpus else 'CPU'}")
    if cluster.runtime_env.together and ranks > 1:
        parts.append(f"group formed with torch {versions.get('torch', '')}".rstrip())
    if (price := cluster.price) is not None:
        parts.append(f"{format_dollars(price)} an hour")
    return ", ".join(parts)


def _warn(cluster: Cluster) -> None:
    """Say what there is to know of a cluster, once for each connection to it."""
    for warning in cluster.warnings:
        print(f"{cluster.name}: {warning}", file=sys.stderr)


def _plugins(names: tuple[str, ...] | None) -> list[Plugin]:
    from jupyter_sky import plugins

    if names is None:
        names = ("torch",) if importlib.util.find_spec("torch") else ()
    if unknown := [name for name in names if name not in plugins.__all__]:
        raise UsageError(
            f"there is no plugin {unknown[0]}: there are {', '.join(plugins.__all__)}, and `none`."
        )
    return [getattr(plugins, name)() for name in names]


def _provider_name(options: CellOptions) -> str:
    return options.provider or ("ssh" if options.hosts else "local")


def _check_options(options: CellOptions, provider: str) -> None:
    """Refuse what only other providers know; settings for those are no hindrance."""
    if provider not in _NOT_FOR:
        raise UsageError(
            f"provider {provider} is not there yet: this version has {' and '.join(_NOT_FOR)}."
        )
    for field in _NOT_FOR[provider]:
        if getattr(options, field):
            option = f"--{field.replace('_', '-')}"
            raise UsageError(f"{option} has no meaning for {provider} nodes: leave it out.")


def _typed(row: registry.Row) -> CellOptions:
    """Return what a person typed for a cluster, as far as that is known."""
    with contextlib.suppress(UsageError):
        return parse_cell(row.spec.get("line", ""))
    return CellOptions()


def _hosts(row: registry.Row) -> tuple[str, ...]:
    """Return the hosts of a cluster as a cell names them, with their ranks."""
    return tuple(
        f"{machine['host']}:{len(machine['nodes'][0]['ranks'])}"
        for machine in row.machines
        if "host" in machine
    )


def _provider_of(row: registry.Row) -> Provider:
    if row.provider not in providers():
        raise SkyError(
            f"cluster {row.name} is of the provider {row.provider}, which this version of "
            "jupyter_sky does not know: use the version that started it."
        )
    return providers()[row.provider]


def no_cluster(name: str | None, to: str = "") -> str:
    """Say that there is no such cluster, and which there are."""
    names = [row.name for row in registry.rows()]
    running = f"there are {', '.join(names)}" if names else "none is running"
    return f"there is no cluster {name or 'of this notebook'}{to and f' to {to}'}: {running}."
