"""The environment of an image on a node: made by uv, named by its content, and reused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import shlex
import sys
import tarfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes, without_secrets
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.packages import (
    as_sent,
    base_requirements,
    check_secrets,
    package_name,
    project,
    sources,
    wheel_content,
)
from jupyter_sky.providers.plan import plan
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.relay import Relay, RelayedFile
from jupyter_sky.providers.ssh.setup import git_logins
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.providers.ssh.setup.failures import explain
from jupyter_sky.providers.ssh.setup.uv import find_uv
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS

_LEAST_DISK = 2**30
INSTALL_WITHIN = 3600.0  # CUDA's wheels have gigabytes, and nothing is printed while they download

# Both sides need the same version, to unpickle what the other side has pickled.
_SAME = ("cloudpickle", "numpy")


Report = Callable[[str], None]
"""Called with what is done, in words; a part of it in brackets can change."""


@dataclass(frozen=True)
class Recipe:
    """The content of an environment.

    Attributes
    ----------
    python
        The version of Python: ``"3.12"``.
    project
        A ``pyproject.toml`` whose dependencies are to be installed.
    requirements
        The content of requirements files.
    wheels
        Wheels to send along.
    no_index
        Whether to use only these, and no package index.
    logins
        Environment variables with logins to Git repositories, which do not affect the digest.
    """

    python: str
    project: str
    requirements: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    no_index: bool = False
    logins: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def asked(self) -> list[str]:
        """The requirements in pip's syntax, except requirements files."""
        lines = [each for each in self.project.splitlines() if each.startswith('    "')]
        return [json.loads(each.strip(" ,")) for each in lines if SENT_WHEELS not in each]

    @property
    def count(self) -> int:
        """The number of requested packages."""
        return self.project.count('\n    "') + sum(text.count("\n") for text in self.requirements)

    def digest(self, machine: str) -> str:
        """Return a name that is unique among environments for machines of that kind."""
        wheels = [wheel_content(path) for path in self.wheels]
        content = [self.python, self.project, self.requirements, wheels, self.no_index, machine]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


def recipe_for(image: Image, cuda: bool = False) -> Recipe:
    """Return the content of an image's environment.

    Parameters
    ----------
    image
        The image.
    cuda
        Whether it is for a node with an NVIDIA GPU.

    Raises
    ------
    UsageError
        If a file that the image names cannot be read, or an address lacks its password.
    """
    check_secrets(image.pip)
    files = [Path(each[2:].strip()) for each in image.pip if each.startswith("-r")]
    asked = [each for each in image.pip if not each.startswith("-r")]
    base = as_sent(base_requirements(image), image.wheels)
    named = {package_name(each) for each in (*asked, *base)}
    ours = [each for each in NEEDED.values() if package_name(each) not in (*named, *_SAME)]
    same = [
        f"{name}=={importlib.metadata.version(name)}"
        for name in _SAME
        if name not in named and importlib.util.find_spec(name)
    ]
    found = sources(image, cuda)
    logins: dict[str, str] = {}
    requirements = [
        git_logins.without_logins(each, logins) for each in [*ours, *same, *base, *asked]
    ]
    return Recipe(
        python=".".join((image.python or sys.version.split()[0]).split(".")[:2]),
        project=project(requirements, found.settings),
        requirements=tuple(git_logins.without_logins(_read(each), logins) for each in files),
        wheels=(*found.wheels, *map(Path, image.wheels)),
        no_index=found.no_index,
        logins=git_logins.variables(logins),
    )


def make_environment(
    connection: HostShell,
    facts: HostFacts,
    image: Image,
    relay: Relay,
    report: Report,
    announce: Report,
    cuda: bool,
) -> str:
    """Make an environment on a host, unless it exists, and return its interpreter.

    Parameters
    ----------
    relay
        Sends files that several hosts need.
    announce
        Called with what will be installed, unless it exists already.
    cuda
        Whether it is for NVIDIA GPUs.

    Raises
    ------
    HostError
        With the last lines of the step that failed.
    """
    recipe = recipe_for(image, cuda)
    folder = f"{facts.cache_folder}/envs/{recipe.digest(facts.machine)}"
    python = f"{folder}/bin/python"
    # The modification time of its folder says when it was last used, for `prune`.
    there = f"test -x {shlex.quote(python)} && touch {shlex.quote(folder)} && echo there || true"
    if connection.run(there).strip():
        return python
    if facts.disk < _LEAST_DISK:
        raise HostError(
            f"only {facts.disk / 2**30:.1f} GB are free in {facts.cache}, which is too little for "
            "an environment: free some space, set XDG_CACHE_HOME there to a folder with more, or "
            "name one that exists with `%config Sky.python`"
        )
    announce(plan(image, recipe.asked, recipe.python, cuda))
    uv = find_uv(connection, facts, relay, report)
    wheels = _send_wheels(connection, facts, recipe, relay, report)
    report(f"making Python {recipe.python} and installing {recipe.count} packages")
    try:
        script = _script(folder, uv, wheels, recipe)
        connection.run(script, within=INSTALL_WITHIN, ends_with_us=True)
    except CommandError as error:
        if sentence := explain(str(error), image, recipe.asked):
            raise HostError(without_secrets(sentence)) from None
        raise HostError(f"its environment could not be made:\n    {_indented(error)}") from None
    return python


def install_system(
    connection: HostShell, facts: HostFacts, packages: Sequence[str], report: Report
) -> None:
    """Install system packages on a host, unless they are installed.

    Raises
    ------
    HostError
        With the last lines, if they cannot be installed.
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
export UV_NO_WRAP=1
{logins}
{files}
{uv} venv --quiet --relocatable --python {python} "$new/env" >said 2>&1 </dev/null ||
    give_up 'uv venv --python {python}'
{uv} pip install --quiet --python "$new/env/bin/python" {options} >said 2>&1 </dev/null ||
    give_up 'uv pip install'
"$new/env/bin/python" -I -c {reuse} {parent} >/dev/null 2>&1 </dev/null
# One whose Python is gone, as after an upgrade of the machine, would be in the way for ever.
test -x {folder}/bin/python || mv -T {folder} "$new/broken" 2>/dev/null
# The first of several kernels makes it: an environment of that name is always whole.
mv -T "$new/env" {folder} 2>/dev/null
cd /
rm -rf "$new"
test -x {folder}/bin/python
"""


# Compiling torch's bytecode takes as long as importing it. uv installs cached packages as links to
# the same files, so bytecode compiled for another environment is valid for this one, too.
_REUSE = """
import os, sys, sysconfig
here = sysconfig.get_path("purelib")
inside = os.path.relpath(here, sys.prefix)
others = [each.path for each in os.scandir(sys.argv[1]) if not each.name.startswith("new.")]
for other in sorted(others, key=os.path.getmtime)[:-3:-1]:
    there = os.path.join(other, inside)
    for folder, _, names in os.walk(there):
        beside, last = os.path.split(folder)
        mine = here + beside[len(there):]
        if last != "__pycache__" or not os.path.isdir(mine):
            continue
        os.makedirs(os.path.join(mine, last), exist_ok=True)
        for name in names:
            source = name.partition(".")[0] + ".py"
            try:
                if os.path.samefile(os.path.join(beside, source), os.path.join(mine, source)):
                    os.link(os.path.join(folder, name), os.path.join(mine, last, name))
            except OSError:
                pass
"""


def _script(folder: str, uv: str, wheels: str | None, recipe: Recipe) -> str:
    """Return the script that makes an environment, for standard input: indexes may have keys."""
    names = ["pyproject.toml", *(f"r{n}.txt" for n in range(len(recipe.requirements)))]
    texts = [recipe.project.replace(SENT_WHEELS, quote(wheels or "")), *recipe.requirements]
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
        reuse=shlex.quote(_REUSE),
        options=shlex.join(options),
        logins="\n".join(f"export {shlex.join([f'{k}={v}'])}" for k, v in recipe.logins.items()),
        files="\n".join(
            f"printf %s {shlex.quote(text)} >{name}"
            for name, text in zip(names, texts, strict=True)
        ),
    )


def _send_wheels(
    connection: HostShell, facts: HostFacts, recipe: Recipe, relay: Relay, report: Report
) -> str | None:
    if not recipe.wheels:
        return None
    size = sum(path.stat().st_size for path in recipe.wheels)
    what = f"sending {len(recipe.wheels)} wheels"
    mark = recipe.digest(facts.machine)
    folder = f"{facts.cache_folder}/wheels/{mark}"
    # Two kernels may send the same at once: each into a folder of its own, and the first of them is
    # used, which is always whole.
    new = f"{facts.cache_folder}/wheels/new.{uuid.uuid4().hex}"
    content, digest = relay.content(mark, lambda: _packed(recipe.wheels))
    packed = f"{new}/all.tar"

    def send() -> None:
        report(f"{what} ({format_bytes(size)})")
        connection.run(
            f"umask 077; mkdir -p {shlex.quote(new)} && cat >{shlex.quote(packed)}",
            content,
            sent=lambda count: report(
                f"{what} ({20 * count // len(content) * 5} % of {format_bytes(size)})"
            ),
        )

    file = RelayedFile(f"{len(recipe.wheels)} wheels", digest, packed, is_kept=False)
    offers = relay.bring(connection, facts, file, send, report)
    unpack = _UNPACK.format(new=shlex.quote(new), folder=shlex.quote(folder))
    # Other hosts take the packed ones from one that offers them.
    connection.run(unpack + ("" if offers else f"rm -rf {shlex.quote(new)}\n"))
    return folder


_UNPACK = """
umask 077
cd {new} && mkdir wheels && tar -xf all.tar -C wheels || {{ rm -rf {new}; exit 1; }}
mv -T wheels {folder} 2>/dev/null || test -d {folder} || {{ rm -rf {new}; exit 1; }}
touch {folder}
cd / && rm -rf {new}/wheels
"""


def _packed(wheels: Sequence[Path]) -> bytes:
    """Return wheels in an uncompressed archive, since they are already compressed."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in wheels:
            archive.add(path, path.name)
    return stream.getvalue()


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text().rstrip("\n") + "\n"
    except OSError as error:
        raise UsageError(f"-r {path} cannot be read: {error.strerror}.") from None


def _indented(error: CommandError) -> str:
    return without_secrets(str(error)).replace("\n", "\n    ")
