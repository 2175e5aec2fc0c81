"""``%config Sky``: the defaults of cell options, and how long things may take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from traitlets import Bool, Dict, List, TraitType, Unicode
from traitlets.config import Configurable

from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list, without_secrets
from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.definitions import (
    CELL_OPTIONS,
    CLUSTER_OPTIONS,
    JOB_OPTIONS,
    CellOptions,
)
from jupyter_sky.notebook.options.local_paths import with_absolute_paths
from jupyter_sky.notebook.options.option_type import InvalidValue, OptionType
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import UNATTENDED
from jupyter_sky.serialization.folders import HUGE

_OPTION_NAME = re.compile(r"--[a-z][a-z-]*[a-z]")
_CODE = re.compile(r"`[^`]*`")
_ARGUMENTS = {argument.name: argument for argument in CELL_OPTIONS}


class Setting(TraitType[Any, Any]):
    """A trait with the type of an option, so that both accept the same values."""

    def __init__(
        self, option_type: OptionType, example: str, help: str, default: Any = None
    ) -> None:
        super().__init__(default_value=default, allow_none=default is None, help=help, config=True)
        self._type = option_type
        self._example = example

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the converted value.

        Raises
        ------
        UsageError
            If it is not of the option's type; the message says what to type instead.
        """
        if not isinstance(value, list | tuple):
            value = [value]
        try:
            texts = self._type.split(str(each) for each in value)
            if len(texts) != 1 and not self._type.many:
                raise InvalidValue(", ".join(texts))
            return self._type.convert(texts)
        except InvalidValue as wrong:
            name = f"{type(obj).__name__}.{self.name}"
            raise UsageError(
                f"{name} takes {self._type.description}, as in "
                f'`%config {name} = {self._example}`; "{without_secrets(str(wrong))}" is not one.'
            ) from None


_PANEL = ("auto", "open", "closed", "none")


class PanelSetting(TraitType[str, object]):
    """One of a few words; the boolean of older versions still works."""

    def validate(self, obj: Any, value: object) -> str:
        """Return the word.

        Raises
        ------
        UsageError
            If it is none of them.
        """
        if isinstance(value, bool):
            value = "auto" if value else "none"
        if value not in _PANEL:
            words = ", ".join(f'"{each}"' for each in _PANEL)
            raise UsageError(f"Sky.panel takes one of {words}, not {value!r}.")
        return str(value)


def _literal(text: str) -> str:
    return text if text.replace(".", "", 1).isdecimal() else f'"{text}"'


def _option(name: str) -> TraitType[Any, Any]:
    argument = _ARGUMENTS[name]
    help = f"{argument.help[0].upper()}{argument.help[1:]}"
    if argument.type is None:
        scope = "It holds for all cells: no option of a cell turns it off."
        return Bool(False, help=f"{help}. {scope}").tag(config=True)
    example = _literal(argument.example)
    precedence = f"A cell's own {name} overrides it."
    return Setting(argument.type, example, f"{help}, like {example}. {precedence}")


def _seconds(default: float, help: str) -> Setting:
    return Setting(types.TIME, f"{default:.0f}", help, default)


class Sky(Configurable):
    """The defaults for options that ``%%sky`` leaves out.

    ``%config Sky`` shows all of them and ``%config Sky.nodes = 4`` changes one; in
    ``ipython_config.py`` it is ``c.Sky.nodes = 4``. Running clusters stay as they are: settings of
    clusters apply to the next one that starts.
    """

    provider = _option("--provider")
    selection = _option("--selection")
    nodes = _option("--nodes")
    gpu = _option("--gpu")
    cpus = _option("--cpus")
    memory = _option("--memory")
    hosts = _option("--hosts")
    region = _option("--region")
    aws_profile = _option("--aws-profile")
    instance_type = _option("--instance-type")
    zone = _option("--zone")
    image_id = _option("--image-id")
    partition = _option("--partition")
    account = _option("--account")
    qos = _option("--qos")
    time = _option("--time")
    constraint = _option("--constraint")
    gres = _option("--gres")
    exclusive = _option("--exclusive")
    sbatch = _option("--sbatch")
    login = _option("--login")
    modules = _option("--modules")
    conda = _option("--conda")
    container = _option("--container")
    spot = _option("--spot")
    spot_or_on_demand = _option("--spot-or-on-demand")
    ssm = _option("--ssm")
    plugin = _option("--plugin")
    pip = _option("--pip")
    wheels = _option("--wheels")
    env = _option("--env")
    index = _option("--index")
    include = _option("--include")
    volumes = _option("--volume")
    volume_cache = Setting(
        types.SIZE,
        '"50GB"',
        "How much of each node's disk the files of a volume may take up; by default half of what "
        "is free there.",
    )
    variable = _option("--variable")
    procs_per_node = _option("--procs-per-node")
    idle_timeout = _option("--idle-timeout")
    autostop = _option("--autostop")
    replace = _option("--replace")
    patience = _option("--patience")
    max_price = _option("--max-price")
    max_cost = _option("--max-cost")
    stdout = _option("--stdout")
    display = Setting(
        types.DISPLAY,
        '"safe"',
        "How the page shows what ranks display: rich, like the output of any kernel, with scripts "
        "that can do all that you can in Jupyter; or safe, as text, images, and HTML and SVG "
        "without scripts. A cell's own --display overrides it.",
        "rich",
    )
    timeout = _option("--timeout")
    workdir = _option("--workdir")
    hang_after = _option("--hang-after")

    groups = Dict(
        value_trait=List(Unicode()),
        key_trait=Unicode(),
        help="Named lists of hosts for --hosts, as in {'lab': ['gpu1', 'gpu2:4']}.",
    ).tag(config=True)
    python = Unicode(
        None,
        allow_none=True,
        help="Path of a Python on SSH hosts, Slurm's nodes and instances at AWS that has "
        "jupyter_sky's requirements; without it, an environment is made there, or nodes of Slurm "
        "use the notebook's.",
    ).tag(config=True)
    interface = Unicode(
        None,
        allow_none=True,
        help="Network interface of SSH hosts and of Slurm's nodes for traffic between them, like "
        "'ib0'; by default the one that routes to the head.",
    ).tag(config=True)
    aws = Dict(
        key_trait=Unicode(),
        help="Further arguments of sky.AWS, as in {'subnet': 'subnet-1a2b3c4d', 'disk': 200}.",
    ).tag(config=True)
    panel = PanelSetting(
        "auto",
        help="How a cell shows its run above its output: 'auto' opens the ranks for the first run "
        "of a cluster, then leaves them as you last did; 'open' and 'closed' always do the same; "
        "'none' shows no strip.",
    ).tag(config=True)
    large = Setting(
        types.SIZE,
        '"4GB"',
        "Data larger than this is sent only with --allow-large.",
        HUGE,
    )
    grace = _seconds(
        Local.grace,
        "Seconds after which idle local nodes end when no notebook is connected.",
    )
    unattended = _seconds(
        UNATTENDED,
        "Seconds that a run may continue while no notebook is connected before its nodes end.",
    )
    start_deadline = _seconds(
        Timeouts.start, "Seconds to wait for nodes and ranks to get ready before the start fails."
    )
    form_deadline = _seconds(
        Timeouts.form, "Seconds to wait for ranks to form their process group."
    )
    stop_deadline = _seconds(
        Timeouts.stop,
        "Seconds to wait for a rank to react to Stop before its process is ended and its variables "
        "are lost.",
    )

    def expand_groups(self, hosts: Iterable[str]) -> tuple[str, ...]:
        """Return hosts, with the names of groups replaced by the hosts in them."""
        return tuple(each for host in hosts for each in self.groups.get(host, [host]))

    def size_limit(self, allow_large: bool) -> float | None:
        """Return the most bytes that are sent; ``None`` for no limit."""
        return None if allow_large else self.large

    def run_defaults(self) -> CellOptions:
        """Return the options of a run that a cell leaves out."""
        return _run_defaults(
            stdout=self.stdout,
            display=self.display,
            timeout=self.timeout,
            workdir=self.workdir,
            hang_after=self.hang_after,
        )

    def with_cluster_defaults(self, options: CellOptions) -> CellOptions:
        """Return ``options``, completed by the settings for a cluster that is about to start."""
        names = [argument.field for argument in CLUSTER_OPTIONS if self.has_trait(argument.field)]
        changes = {
            name: getattr(self, name)
            for name in names
            if name not in options.given and getattr(self, name) is not None
        }
        completed = with_absolute_paths(replace(options, **changes))
        if not _runs_in_own_job(options, completed):
            return completed
        untyped: dict[str, Any] = {name: getattr(CellOptions, name) for name in JOB_OPTIONS}
        return replace(completed, **untyped)

    @contextmanager
    def explained(self, completed: Sequence[CellOptions]) -> Iterator[None]:
        """Let errors about these options say which of those that they name are settings.

        Nobody can leave out what nobody has typed.
        """
        try:
            yield
        except UsageError as error:
            if said := self._named_in(str(error), completed):
                error.args = (f"{error} {said}",)
            raise

    def _named_in(self, text: str, completed: Sequence[CellOptions]) -> str:
        """Return a sentence about the options in a text that have their value of the settings.

        Those in code are what the text advises to type.
        """
        traits = self.traits()
        there = {argument.name: argument.field for argument in CLUSTER_OPTIONS}
        named = {
            option: f"`%config Sky.{field} = {traits[field].default_value}`"
            for option in dict.fromkeys(_OPTION_NAME.findall(_CODE.sub("", text)))
            if (field := there.get(option)) in traits
            and (value := getattr(self, field)) != traits[field].default_value
            and any(getattr(options, field) == value for options in completed)
        }
        if not named:
            return ""
        names, changes = format_list(list(named)), format_list(list(named.values()))
        if len(named) > 1:
            return f"Here, {names} are settings: {changes} turn them off."
        return f"Here, {names} is a setting: {changes} turns it off."

    def timeouts(self) -> Timeouts:
        """Return how long things may take."""
        return Timeouts(self.start_deadline, self.form_deadline, self.stop_deadline)


def _runs_in_own_job(typed: CellOptions, completed: CellOptions) -> bool:
    """Return whether nodes are those of the notebook's own job: only a cell asks for another."""
    if "slurm" not in (completed.provider or "").split(",") or completed.login:
        return False
    from jupyter_sky.providers.slurm.allocation import own_job

    return own_job() is not None and not any(getattr(typed, name) for name in JOB_OPTIONS)


@lru_cache(maxsize=8)  # needed by each cell; lines parsed with equal defaults are not parsed again
def _run_defaults(**options: Any) -> CellOptions:
    return CellOptions(**options)
