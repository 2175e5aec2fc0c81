"""Task files of SkyPilot: what they say, as options of a cell, scripts, and what to send."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_list, similar_file, similar_names
from jupyter_sky.imports import import_whole
from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.option_type import InvalidValue, OptionType
from jupyter_sky.providers.buckets.volume import Volume

_USED = ("name", "workdir", "num_nodes", "resources", "setup", "run", "envs", "secrets")
_KEYS = (*_USED, "file_mounts")
# Keys of SkyPilot's that change nothing here, which is said.
_NOT_USED = (
    "config",
    "event_callback",
    "experimental",
    "inputs",
    "outputs",
    "pool",
    "service",
    "volumes",
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CHOICES = ("any_of", "ordered")
_RESOURCES_NOT_USED = (
    "_cluster_config_overrides",
    "accelerator_args",
    "disk_size",
    "disk_tier",
    "job_recovery",
    "labels",
    "network_tier",
    "ports",
    "priority",
    "volumes",
)
# An idle cluster is stopped here at once: nothing is waited for, and nothing runs.
_AUTOSTOP_NOT_USED = ("hook", "hook_timeout", "wait_for")


@dataclass(frozen=True)
class TaskFile:
    """What a task file says.

    Attributes
    ----------
    name
        What the task is called.
    options
        Its resources, as options of a cell: several, where it leaves the choice.
    setup, run
        Its scripts; empty if it has none.
    env
        The variables of both, with those that were typed.
    workdir
        The folder that they run in, from the current one; empty if it names none.
    mounts
        Where on a node what else is to be, and where it is here. These and ``workdir`` have names
        of variables, whose values `place` puts there.
    not_used
        The keys that change nothing here.
    """

    name: str
    options: tuple[dict[str, Any], ...]
    setup: str
    run: str
    env: dict[str, str]
    workdir: str
    mounts: dict[str, str]
    not_used: tuple[str, ...]

    def place(self, name: str) -> str:
        """Return a path of the file with the values of variables in place of their names."""
        return _VARIABLE.sub(lambda found: self.env.get(found[1] or found[2], found[0]), name)

    @contextmanager
    def saying_names(self) -> Iterator[None]:
        """Have errors about its files say names of variables: a value can be a secret."""
        try:
            yield
        except UsageError as error:
            text = str(error)
            for name in (self.workdir, *self.mounts.values()):
                source, named = (
                    str(Path(each).expanduser().absolute()) for each in (self.place(name), name)
                )
                text = text.replace(source, named) if source != named else text
            raise UsageError(text) from None


def read_task(path: Path, given: Mapping[str, str]) -> TaskFile:
    """Read a task file.

    Parameters
    ----------
    path
        The file.
    given
        Variables that replace those of the file.

    Raises
    ------
    UsageError
        When it cannot be used; the sentence says where it is wrong.
    """
    said = _load(path)
    resources = _mapping(path, said, "resources")
    _check_keys(path, "", said, (*_KEYS, *_NOT_USED))
    nodes: dict[str, Any] = {}
    if said.get("num_nodes") is not None:
        nodes["nodes"] = _convert(path, "num_nodes", types.WHOLE, said["num_nodes"])
    choices, selection = _choices(path, resources)
    options = [
        {**nodes, **selection, **_options(path, each, _where(resources, at))}
        for at, each in enumerate(choices)
    ]
    env = _variables(path, said, given)
    not_used = [key for key in said if key in _NOT_USED]
    not_used += dict.fromkeys(f"resources.{key}" for each in choices for key in _not_used(each))
    return TaskFile(
        name=str(said.get("name") or path.stem),
        options=tuple(options),
        setup=_text(path, said, "setup"),
        run=_text(path, said, "run"),
        env=env,
        workdir=_text(path, said, "workdir"),
        mounts=_mounts(path, said),
        not_used=tuple(not_used),
    )


def _load(path: Path) -> dict[str, Any]:
    import_whole("yaml")
    import yaml

    try:
        text = path.read_text("utf-8")
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except OSError as error:
        instead = similar_file(path, "name a task file.")
        raise UsageError(f"{path} cannot be read ({error.strerror}): {instead}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        what = getattr(error, "problem", None) or "it is no text"
        raise UsageError(f"{path}{line}: this is no YAML ({what}).") from None
    except ValueError as error:  # of a value that looks like a date or number
        raise UsageError(
            f"{path}: a value in it looks like a date or number, and is none ({error}): put it in "
            "quotes."
        ) from None
    if len(documents) > 1:
        raise UsageError(f"{path} has several tasks, a pipeline: make a file of each.")
    said = documents[0] if documents else {}
    if not isinstance(said, dict):
        raise UsageError(f"{path} is no task file: it should have keys like `run:`.")
    return {str(key): value for key, value in said.items()}


def _check_keys(path: Path, prefix: str, said: Mapping[str, Any], known: tuple[str, ...]) -> None:
    wrong = [key for key in said if key not in known]
    if not wrong:
        return
    parts = []
    for key in wrong:
        near = similar_names(str(key), known)
        parts.append(f"{prefix}{key}" + (f" (did you mean {near[0]}?)" if near else ""))
    raise UsageError(f"{path} has keys that no task has: {', '.join(parts)}.")


def _mapping(path: Path, said: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = said.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {key} should have keys below it, like `name: value`.")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise UsageError(
            f"{path}: a name in {key} is read as {wrong[0]!r}, as YAML has it: put it in quotes."
        )
    return dict(value)


def _text(path: Path, said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key} should be text; {value!r} is none.")
    return value


def _variables(path: Path, said: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    secrets = _mapping(path, said, "secrets")
    found = {**_mapping(path, said, "envs"), **secrets, **given}
    if missing := [name for name, value in found.items() if value is None]:
        options = (f"--{'secret' if name in secrets else 'env'} {name}" for name in missing)
        raise UsageError(
            f"{path} leaves {format_list(missing)} without a value: set "
            f"{'it' if len(missing) == 1 else 'them'} here and add `{' '.join(options)}`."
        )
    for name, value in found.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{path}: {name!r} is no name of a variable: take letters, digits and `_`."
            )
        if isinstance(value, list | dict) or "\0" in str(value):
            raise UsageError(f"{path}: the value of {name} should be text: put it in quotes.")
    return {name: str(value) for name, value in found.items()}


def _mounts(path: Path, said: Mapping[str, Any]) -> dict[str, str]:
    mounts = {}
    for target, source in _mapping(path, said, "file_mounts").items():
        url = source.get("source") if isinstance(source, dict) else source
        if volume := _as_volume(url, target):
            raise UsageError(
                f"{path}: file_mounts {target} is a bucket: leave it out, and add `--volume "
                f"{shlex.quote(volume)}` to the line."
            )
        if not isinstance(source, str) or "://" in source:
            raise UsageError(
                f"{path}: file_mounts {target} is not a path of this computer: leave it out, and "
                "get it in `setup`."
            )
        mounts[target] = source
    return mounts


def _as_volume(url: object, target: str) -> str | None:
    """Return what to type for a place in a bucket, if it can be a volume."""
    try:
        return str(Volume.parse(f"{url}:{target}"))
    except UsageError:
        return None


# Resources of which one is enough


def _choices(
    path: Path, resources: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all resources that a task leaves to choose from, and which to try first.

    With ``any_of`` the cheapest is wanted, with ``ordered`` the first; what stands beside them
    holds for each. Several accelerators are such a choice too: a list has an order, and keys have
    none.
    """
    keys = [key for key in _CHOICES if resources.get(key) is not None]
    common = {key: value for key, value in resources.items() if key not in _CHOICES}
    gpus = common.get("accelerators")
    if isinstance(gpus, list | dict) and len(gpus) > 1:
        keys.append("accelerators")
    if len(keys) > 1:
        raise UsageError(f"{path}: resources has {' and '.join(keys)}: keep one of them.")
    if not keys:
        return [common], {}
    given, [key] = resources[keys[0]], keys
    if key == "accelerators":
        given = given if isinstance(given, list) else [{name: n} for name, n in given.items()]
        choices = [{**common, key: each} for each in given]
        is_ordered = isinstance(resources[key], list)
    else:
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise UsageError(
                f"{path}: resources.{key} should be a list of resources, like `- infra: aws`."
            )
        choices = [{**common, **each} for each in given]
        is_ordered = key == "ordered"
    if not choices:
        raise UsageError(f"{path}: resources.{key} is empty: name resources, or leave it out.")
    return choices, {"selection": "first" if is_ordered else "cheapest"}


def _where(resources: Mapping[str, Any], at: int) -> str:
    """Return where in the file one of the resources stands, for errors."""
    key = next((key for key in _CHOICES if resources.get(key) is not None), "")
    return f"resources.{key}[{at}]." if key else "resources."


def _options(path: Path, resources: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return resources as options of a cell."""
    _check_keys(path, where, resources, (*_RESOURCES, *_RESOURCES_NOT_USED))
    options: dict[str, Any] = {}
    for key, read in _RESOURCES.items():
        if resources.get(key) is not None:
            options.update(read(path, f"{where}{key}", resources[key]))
    return options


def _not_used(resources: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of resources that change nothing here."""
    yield from (key for key in resources if key in _RESOURCES_NOT_USED)
    autostop = resources.get("autostop")
    if isinstance(autostop, dict):
        yield from (f"autostop.{key}" for key in autostop if key in _AUTOSTOP_NOT_USED)


# Resources, each as options of a cell

_PLACES = {"local": (), "ssh": (), "aws": ("region", "zone"), "slurm": ()}
"""What `infra` may name below a provider, as options."""

_AUTOSTOP = ("down", "idle_minutes", *_AUTOSTOP_NOT_USED)
_USUAL_MINUTES = 5

_Reader = Callable[[Path, str, Any], dict[str, Any]]


def _convert(path: Path, key: str, kind: OptionType, value: Any) -> Any:
    try:
        return kind.convert([str(value)])
    except InvalidValue:
        raise UsageError(f'{path}: {key} takes {kind.description}; "{value}" is not one.') from None


def _as(option: str, kind: OptionType) -> _Reader:
    return lambda path, key, value: {option: _convert(path, key, kind, value)}


def _spot(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise UsageError(f"{path}: {key} is true or false; {value!r} is neither.")
    return {"spot": value}


def _accelerators(path: Path, key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, dict) and len(value) == 1:
        ((name, count),) = value.items()
        value = name if count is None else f"{name}:{count}"
    if not isinstance(value, str):
        raise UsageError(f"{path}: {key} should be the name of a GPU, like A100:8.")
    return {"gpu": _convert(path, key, types.GPU, value)}


def _infra(path: Path, key: str, value: Any) -> dict[str, Any]:
    provider, *place = str(value).split("/")
    found = _cloud(path, key, provider)
    names = _PLACES[found["provider"]]
    if len(place) > len(names):
        known = "/".join([provider, *(name.upper() for name in names)])
        raise UsageError(
            f'{path}: {key} is "{value}", of which {known} is understood here: leave the rest out, '
            "and type it as an option, like --hosts or --partition."
        )
    given = [(name, part) for name, part in zip(names, place, strict=False) if part != "*"]
    return {**found, **{name: _convert(path, key, types.WORD, part) for name, part in given}}


def _cloud(path: Path, key: str, value: Any) -> dict[str, Any]:
    return {"provider": _convert(path, key, types.PROVIDER, str(value).lower())}


def _autostop(path: Path, key: str, value: Any) -> dict[str, Any]:
    keeps_disks = {"autostop": True}
    if isinstance(value, dict):
        _check_keys(path, f"{key}.", value, _AUTOSTOP)
        keeps_disks = {} if value.get("down") else keeps_disks
        value = value.get("idle_minutes")
        value = _USUAL_MINUTES if value is None else value
    if isinstance(value, bool):
        return {"idle_timeout": 60.0 * _USUAL_MINUTES, **keeps_disks} if value else {}
    # A number is one of minutes, and 1.5 no seconds.
    is_number = isinstance(value, float) or str(value).isdecimal()
    timeout = _convert(path, key, types.TIME, f"{value}m" if is_number else value)
    return {"idle_timeout": timeout, **keeps_disks}


_RESOURCES: Mapping[str, _Reader] = {
    "accelerators": _accelerators,
    "autostop": _autostop,
    "cloud": _cloud,
    "cpus": _as("cpus", types.AMOUNT),
    "image_id": _as("image_id", types.WORD),
    "infra": _infra,
    "instance_type": _as("instance_type", types.WORD),
    "max_hourly_cost": _as("max_price", types.DOLLARS),
    "memory": _as("memory", types.AMOUNT),
    "region": _as("region", types.WORD),
    "use_spot": _spot,
    "zone": _as("zone", types.WORD),
}
