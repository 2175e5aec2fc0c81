"""What an environment is made of, for an image, and the name that it gets by that."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_sky.errors import UsageError
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
from jupyter_sky.providers.spec import Image
from jupyter_sky.providers.ssh.setup.packages import git_logins
from jupyter_sky.transport.protocol.agent_requests import SENT_WHEELS

# Both sides need the same version, to unpickle what the other side has pickled.
_SAME = ("cloudpickle", "numpy")


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


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text().rstrip("\n") + "\n"
    except OSError as error:
        raise UsageError(f"-r {path} cannot be read: {error.strerror}.") from None
