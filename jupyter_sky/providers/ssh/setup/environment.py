"""The environment of an image on a node: made by uv, named by what is in it, used again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import re
import shlex
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import HIDDEN, format_bytes, without_secrets
from jupyter_sky.providers.spec import Image, PipIndex
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.setup import git_logins
from jupyter_sky.providers.ssh.setup.code_package import NEEDED
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.providers.ssh.setup.uv import find_uv

_LEAST_DISK = 2**30
INSTALL_WITHIN = 3600.0  # CUDA's wheels have gigabytes, and nothing is printed while they come

# What is pickled here and unpickled there, or the other way: the same version understands it.
_SAME = ("cloudpickle", "numpy")

Report = Callable[[str], None]
"""Called with what is done, in words; a part of it in brackets can change."""


@dataclass(frozen=True)
class Recipe:
    """What an environment is made of.

    Attributes
    ----------
    python
        The version of Python: ``"3.12"``.
    project
        A ``pyproject.toml`` whose dependencies are installed.
    requirements
        The content of requirements files.
    wheels
        Wheels that are sent along.
    no_index
        Whether no package index is used beside them.
    logins
        Variables with the logins to Git repositories; the same environment is made without them.
    """

    python: str
    project: str
    requirements: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    no_index: bool = False
    logins: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """How many packages are asked for."""
        return self.project.count('\n    "') + sum(text.count("\n") for text in self.requirements)

    def digest(self, machine: str) -> str:
        """Return a name that no other environment has on a machine of that kind."""
        wheels = [(path.name, path.stat().st_size) for path in self.wheels]
        content = [self.python, self.project, self.requirements, wheels, self.no_index, machine]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def recipe_for(image: Image) -> Recipe:
    """Return what the environment of an image is made of.

    Raises
    ------
    UsageError
        When a file that the image names cannot be read, or an address lacks its password.
    """
    for each in image.pip:
        if HIDDEN in each:
            raise UsageError(
                f"the registry does not keep the secret behind {HIDDEN} in {each}: end the cluster "
                f"with `%sky down` and start it again with that secret."
            )
    files = [Path(each[2:].strip()) for each in image.pip if each.startswith("-r")]
    asked = [each for each in image.pip if not each.startswith("-r")]
    named = {_name(each) for each in asked}
    ours = [each for each in NEEDED.values() if _name(each) not in (*named, *_SAME)]
    same = [
        f"{name}=={importlib.metadata.version(name)}"
        for name in _SAME
        if name not in named and importlib.util.find_spec(name)
    ]
    every = [each if isinstance(each, PipIndex) else PipIndex(each) for each in image.pip_indexes]
    folders = [index for index in every if not urlsplit(index.url).scheme]
    wheels = tuple(wheel for index in folders for wheel in _wheels(index))
    sent = {_name(wheel.name) for wheel in wheels}
    indexes = [index for index in every if index not in folders]
    wanted = [index for index in indexes if not index.packages or set(index.packages) - sent]
    logins: dict[str, str] = {}
    requirements = [git_logins.without_logins(each, logins) for each in [*ours, *same, *asked]]
    return Recipe(
        python=".".join((image.python or sys.version.split()[0]).split(".")[:2]),
        project=_project(requirements, wanted, sent),
        requirements=tuple(git_logins.without_logins(_read(each), logins) for each in files),
        wheels=wheels,
        no_index=bool(folders) and not wanted,
        logins=git_logins.variables(logins),
    )


def make_environment(
    connection: SSHConnection, facts: HostFacts, recipe: Recipe, report: Report
) -> str:
    """Make an environment on a host, unless it is there, and return its interpreter.

    Raises
    ------
    HostError
        With the last lines of what failed.
    """
    folder = f"{facts.cache_folder}/envs/{recipe.digest(facts.machine)}"
    python = f"{folder}/bin/python"
    # The time of its folder says when it was used last, for `prune`.
    there = f"test -x {shlex.quote(python)} && touch {shlex.quote(folder)} && echo there || true"
    if connection.run(there).strip():
        return python
    if facts.disk < _LEAST_DISK:
        raise HostError(
            f"only {facts.disk / 2**30:.1f} GB are free in its home, which is too little for an "
            "environment: free some space, or name one that exists with `%config Sky.python`"
        )
    uv = find_uv(connection, facts, report)
    wheels = _send_wheels(connection, facts, recipe, report)
    report(f"making Python {recipe.python} and installing {recipe.count} packages")
    try:
        script = _script(folder, uv, wheels, recipe)
        connection.run(script, within=INSTALL_WITHIN, ends_with_us=True)
    except CommandError as error:
        raise HostError(f"its environment could not be made:\n    {_indented(error)}") from None
    return python


def install_system(
    connection: SSHConnection, facts: HostFacts, packages: Sequence[str], report: Report
) -> None:
    """Install system packages on a host, unless they are there.

    Raises
    ------
    HostError
        With the last lines, when they cannot be installed.
    """
    if not packages:
        return
    report(f"installing {', '.join(packages)}")
    words = shlex.join(packages)
    sudo = "" if facts.user == 0 else "sudo -n "
    try:
        connection.run(
            f"""
            dpkg-query --show {words} >/dev/null 2>&1 && exit
            export DEBIAN_FRONTEND=noninteractive
            {sudo}apt-get update --quiet=2 </dev/null &&
                {sudo}apt-get install --quiet=2 --no-install-recommends {words} </dev/null
            """,
            within=INSTALL_WITHIN,
        )
    except CommandError as error:
        raise HostError(
            f"`{sudo}apt-get install {words}` failed:\n    {_indented(error)}"
        ) from None


_MAKE = """
umask 077
mkdir -p {parent}
new=$(mktemp -d {parent}/new.XXXXXX)
trap 'rm -rf "$new"; exit 1' TERM
give_up() {{ printf '`%s` failed:\\n' "$1"; cat "$new/said"; rm -rf "$new"; exit 1; }}
cd "$new"
{logins}
{files}
{uv} venv --quiet --relocatable --python {python} "$new/env" >said 2>&1 </dev/null ||
    give_up 'uv venv --python {python}'
{uv} pip install --quiet --python "$new/env/bin/python" {options} >said 2>&1 </dev/null ||
    give_up 'uv pip install'
# The first of several kernels makes it: an environment of that name is always whole.
mv -T "$new/env" {folder} 2>/dev/null
cd /
rm -rf "$new"
test -x {folder}/bin/python
"""


def _script(folder: str, uv: str, wheels: str | None, recipe: Recipe) -> str:
    """Return what makes an environment. It is read from standard input: indexes can have keys."""
    names = ["pyproject.toml", *(f"r{n}.txt" for n in range(len(recipe.requirements)))]
    texts = [recipe.project, *recipe.requirements]
    options = [word for name in names for word in ("-r", name)]
    if wheels:
        options += ["--find-links", wheels]
    if recipe.no_index:
        options.append("--no-index")
    return _MAKE.format(
        parent=shlex.quote(str(Path(folder).parent)),
        folder=shlex.quote(folder),
        uv=shlex.quote(uv),
        python=recipe.python,
        options=shlex.join(options),
        logins="\n".join(f"export {shlex.join([f'{k}={v}'])}" for k, v in recipe.logins.items()),
        files="\n".join(
            f"printf %s {shlex.quote(text)} >{name}"
            for name, text in zip(names, texts, strict=True)
        ),
    )


def _project(requirements: Sequence[str], indexes: Sequence[PipIndex], sent: set[str]) -> str:
    lines = ["[project]", 'name = "node"', 'version = "0"', "dependencies = ["]
    lines += [f"    {json.dumps(each)}," for each in requirements]
    lines.append("]")
    sources = {}
    for number, index in enumerate(indexes):
        explicit = "true" if index.packages else "false"
        lines += ["[[tool.uv.index]]", f'name = "index-{number}"', f"url = {json.dumps(index.url)}"]
        lines.append(f"explicit = {explicit}")
        sources.update({_name(each): number for each in index.packages if _name(each) not in sent})
    lines.append("[tool.uv.sources]")
    lines += [f'{name} = {{ index = "index-{number}" }}' for name, number in sources.items()]
    return "\n".join(lines) + "\n"


def _send_wheels(
    connection: SSHConnection, facts: HostFacts, recipe: Recipe, report: Report
) -> str | None:
    if not recipe.wheels:
        return None
    size = sum(path.stat().st_size for path in recipe.wheels)
    what = f"sending {len(recipe.wheels)} wheels"
    report(f"{what} ({format_bytes(size)})")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:  # wheels are compressed already
        for path in recipe.wheels:
            archive.add(path, path.name)
    folder = f"{facts.cache_folder}/wheels/{recipe.digest(facts.machine)}"
    quoted = shlex.quote(folder)
    content = stream.getvalue()
    connection.run(
        f"umask 077; mkdir -p {quoted} && tar -xf - -C {quoted}",
        content,
        sent=lambda count: report(
            f"{what} ({20 * count // len(content) * 5} % of {format_bytes(size)})"
        ),
    )
    return folder


def _wheels(index: PipIndex) -> list[Path]:
    folder = Path(index.url).expanduser()
    found = sorted(folder.glob("*.whl"))
    if not found:
        raise UsageError(
            f"pip_indexes has {without_secrets(index.url)!r}, which is neither an address nor a "
            "folder with wheels: type one that begins with https://, or `pip download` wheels into "
            "the folder first."
        )
    return found


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text().rstrip("\n") + "\n"
    except OSError as error:
        raise UsageError(f"-r {path} cannot be read: {error.strerror}.") from None


def _name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._]+(?:-(?!\d)[A-Za-z0-9._]+)*", requirement.strip())
    return re.sub(r"[-_.]+", "-", name[0]).lower() if name else requirement


def _indented(error: CommandError) -> str:
    return without_secrets(str(error)).replace("\n", "\n    ")
