"""Preparing a host for an agent: our code, an interpreter, files and variables of the image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.agent import work_folder
from jupyter_sky.providers.ssh.setup.bootstrap import bootstrap
from jupyter_sky.providers.ssh.setup.code_package import check_python, code_package, send_code
from jupyter_sky.providers.ssh.setup.facts import HostFacts, check_folders, gather_facts
from jupyter_sky.providers.ssh.setup.files import SentFiles, shell_values
from jupyter_sky.providers.ssh.setup.packages.environment import make_environment
from jupyter_sky.providers.ssh.setup.packages.system import install_system
from jupyter_sky.providers.ssh.setup.placement import check_size, shared_gpus


@dataclass(frozen=True)
class PreparedHost:
    """A host that is ready for an agent.

    Attributes
    ----------
    connection, facts
        The connection to it, and what there is.
    python, code
        The interpreter, and the folder of our package.
    work
        The folder that ranks work in.
    keeps
        Folders of ours that the agent uses, so that nothing prunes them.
    variables
        Variables of the image whose values are what commands print there.
    """

    connection: HostShell
    facts: HostFacts
    python: str
    code: str
    work: str
    keeps: tuple[str, ...]
    variables: dict[str, str]

    @property
    def name(self) -> str:
        """What the user calls it."""
        return str(self.connection.target)


def prepare_host(
    connection: HostShell,
    spec: ClusterSpec,
    python: str | None,
    files: SentFiles,
    relay: Relay,
    report: Callable[[str, float], None],
    announce: Callable[[str], None],
    cuda: bool | None = None,
) -> PreparedHost:
    """Put on a host what an agent and its ranks need.

    Parameters
    ----------
    python
        The interpreter to use; ``None`` makes an environment.
    files
        Those of the image.
    relay
        Brings what several hosts need.
    report
        Called with each step and how much of the way is behind it then, from 0 to 1.
    announce
        Called with what will be installed, where an environment is made.
    cuda
        Whether an environment is for NVIDIA GPUs; ``None`` if it is where the host has some.

    Raises
    ------
    SkyError
        When the host cannot be a node.
    """
    report("connecting", 0.0)
    connection.connect()
    report("looking around", 0.1)
    facts = gather_facts(connection, code_package().digest)
    check_size(facts, spec)
    check_folders(facts)
    if facts.gpu_trouble and cuda is None:
        announce(f"{connection.target} goes on without GPUs (nvidia-smi says: {facts.gpu_trouble})")
    if cuda is None and (shared := shared_gpus(facts, spec)):
        announce(f"{connection.target}: {shared}")
    report("sending jupyter_sky", 0.2)
    code = send_code(connection, facts)
    if python is not None:
        report(f"checking {python}", 0.4)
        check_python(connection, python)
    else:
        install_system(connection, facts, spec.image.apt, lambda text: report(text, 0.3))
        python = make_environment(
            connection,
            facts,
            spec.image,
            relay,
            lambda text: report(text, 0.4),
            announce,
            facts.driver is not None if cuda is None else cuda,
        )
    folder = work_folder(spec.name, facts)
    are_sent = files.are_wanted(connection, folder)
    if are_sent:
        report(f"sending files ({format_bytes(len(files.content))})", 0.7)
        files.send(connection, folder)
    image = spec.image
    bootstrap(
        connection, image.bootstrap, folder, python, image.env, lambda text: report(text, 0.75)
    )
    if are_sent:  # those with which a command of `bootstrap` fails can be corrected
        files.keep(connection, folder)
    variables = shell_values(connection, image.shell_vars)
    report("prepared", 0.8)
    is_ours = python.startswith(f"{facts.cache_folder}/envs/")
    keeps = (code, str(PurePosixPath(python).parents[1])) if is_ours else (code,)
    return PreparedHost(connection, facts, python, code, folder, keeps, variables)
