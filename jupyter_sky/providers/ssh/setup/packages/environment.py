"""The environment of an image on a node: made by uv, named by its content, and reused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.plan import plan
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import INSTALL_WITHIN, HostShell
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.providers.ssh.setup.packages.failures import explain, indented
from jupyter_sky.providers.ssh.setup.packages.recipe import Recipe, recipe_for
from jupyter_sky.providers.ssh.setup.packages.uv import find_uv
from jupyter_sky.providers.ssh.setup.packages.wheels import send_wheels
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS

_LEAST_DISK = 2**30

Report = Callable[[str], None]
"""Called with what is done, in words; a part of it in brackets can change."""


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
    wheels = send_wheels(connection, facts, recipe, relay, report)
    report(f"making Python {recipe.python} and installing {recipe.count} packages")
    try:
        script = _script(folder, uv, wheels, recipe)
        connection.run(script, within=INSTALL_WITHIN, ends_with_us=True)
    except CommandError as error:
        if sentence := explain(str(error), image, recipe, facts.machine, cuda):
            raise HostError(without_secrets(sentence)) from None
        raise HostError(f"its environment could not be made:\n    {indented(error)}") from None
    return python


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
