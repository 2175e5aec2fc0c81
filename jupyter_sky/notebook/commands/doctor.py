"""``%sky doctor``: checks the requirements of clusters, here, on hosts and at AWS."""

from __future__ import annotations

import platform
import shutil
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory import orphans, registry
from jupyter_sky.cluster.inventory.storage.row import Broken
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes, format_count
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.paths import home, runtime
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.node_defaults import ENOUGH_SHARED_MEMORY, SHARED_MEMORY
from jupyter_sky.providers.slurm import partitions
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.ssh import doctor as ssh
from jupyter_sky.providers.ssh import network_check
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.transport.protocol.versions import versions

_ENOUGH_FILES = 1024
_ENOUGH_DISK = 2**30


@dataclass(frozen=True)
class Finding:
    """What a check of this computer found; `examine` knows its name.

    Attributes
    ----------
    found
        What was found.
    fix
        What to do about it; empty if nothing is wrong.
    """

    found: str
    fix: str = ""


def doctor(context: CommandContext, options: Namespace) -> bool:
    """Print the result of each check, and return whether all is well."""
    settings, targets = context.session.settings, context.hosts(options.hosts)
    here = (CheckResult(name, each.found, each.fix) for name, each in examine())
    results = [_print_results(here)]
    if options.provider == "aws":
        print()
        results.append(_check_aws(context.session.factory.aws()))
    if options.provider == "slurm":
        print("\nSlurm:")
        login = login_node(options.login or settings.login)
        results.append(_print_results(partitions.diagnose(login)))
    for target in targets:
        print()
        results.append(_check_host(target, settings.python))
    row = None if targets else registry.find(context.session.current_name)
    if row and row.is_stopped:
        print(
            f"\n{row.name} is stopped, so its nodes are not checked: `%sky start {row.name}` "
            "starts it again"
        )
    if len(targets) > 1:
        print()
        results.append(_check_network(targets, settings.python, settings.interface))
    return all(results)


def examine() -> Iterator[tuple[str, Finding]]:
    """Check this computer; yield the name and the finding of each check."""
    import pynvml

    for name, check in _CHECKS.items():
        try:
            yield name, check()
        except (SkyError, OSError, pynvml.NVMLError) as error:
            yield name, Finding("cannot be checked", f"{error}")


def _check_host(target: Target, python: str | None) -> bool:
    """Check a host; ``python`` as in `sky.SSH`."""
    print(f"{target}:")
    return _print_results(ssh.diagnose(target, python))


def _check_network(targets: Sequence[Target], python: str | None, interface: str | None) -> bool:
    """Check whether hosts reach each other; parameters as in `sky.SSH`."""
    print("between them:")
    return _print_results(network_check.diagnose(targets, python, interface))


def _check_aws(provider: AWS) -> bool:
    """Check the AWS account, and print the policy that its user needs."""
    print("AWS:")
    is_well = _print_results(provider.diagnose())
    print(f"\nThe smallest policy for your AWS user:\n{provider.policy()}")
    return is_well


def _print_results(results: Iterable[CheckResult]) -> bool:
    """Print each check, and how many failed; return whether none did."""
    width = max(map(len, _CHECKS))
    count = wrong = 0
    for each in results:
        count += 1
        wrong += bool(each.fix)
        word = "fix" if each.fix else "ok "
        text = f"{word}  {each.name:<{width}}  {each.found}"
        print(f"{text}: {each.fix}" if each.fix else text, flush=True)
    print(f"{wrong} of {count} need your attention" if wrong else "all is well")
    return not wrong


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()}"
    if sys.platform != "linux":
        return Finding(found, "local nodes need Linux; SSH hosts and AWS work from here.")
    return Finding(found)


def _jupyter_sky() -> Finding:
    return Finding(__version__)


def _cloudpickle() -> Finding:
    return Finding(versions()["cloudpickle"])


def _torch() -> Finding:
    version = versions().get("torch")
    if version is None:
        return Finding("not installed", "`%pip install torch`, unless you use `--plugin none`.")
    if version.endswith("+cpu") and _gpu_names():
        fix = "install a build with CUDA, see https://pytorch.org/get-started/locally/."
        return Finding(f"{version}, which uses no GPU", fix)
    return Finding(version)


def _gpus() -> Finding:
    import pynvml

    try:
        names = _gpu_names()
    except pynvml.NVMLError as error:
        return Finding(f"the driver says {error}", "run `nvidia-smi` in a terminal for details.")
    counted = (f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    return Finding(", ".join(counted) or "none, ranks use the CPU")


def _gpu_names() -> list[str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:  # no driver, hence no GPU
        return []
    try:
        devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [str(pynvml.nvmlDeviceGetName(device)) for device in devices]
    finally:
        pynvml.nvmlShutdown()


def _shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        return Finding("none, data goes over the disk")
    free = shutil.disk_usage(SHARED_MEMORY).free
    found = f"{format_bytes(free)} free in {SHARED_MEMORY}"
    if free < ENOUGH_SHARED_MEMORY:
        return Finding(found, "give the container more, as in `docker run --shm-size=8g`.")
    return Finding(found)


def _open_files() -> Finding:
    if sys.platform == "win32":
        return Finding("any number")
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("any number")
    if soft < _ENOUGH_FILES:
        return Finding(f"{soft} at most", "`ulimit -n 4096` in the shell that starts Jupyter.")
    return Finding(f"{soft:,} at most")


def _disk() -> Finding:
    folder = runtime()
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free in {folder}"
    if free < _ENOUGH_DISK:
        return Finding(found, "free some space, or set JUPYTER_SKY_HOME to a folder elsewhere.")
    return Finding(found)


def _registry() -> Finding:
    try:
        found = registry.read()
    except registry.RegistryError as error:
        said, _, fix = str(error).rpartition(": ")
        return Finding(said, fix)
    text = f"{format_count(len(found), 'cluster')} in {home()}"
    if broken := [row.name for row in found if isinstance(row, Broken)]:
        fix = f"its entry for {broken[0]} cannot be read: `%sky down {broken[0]}` removes it."
        return Finding(text, fix)
    return Finding(text)


def _loopback() -> Finding:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(5)
        client.settimeout(5)
        try:
            client.connect(server.getsockname())
            server.accept()[0].close()
        except OSError as error:
            return Finding(f"{error}", "allow connections to 127.0.0.1 on this computer.")
    return Finding("ranks can reach each other")


def _leftovers() -> Finding:
    left = orphans.find()
    if not left:
        return Finding("nothing left by dead clusters")
    return Finding("; ".join(map(str, left)), "`%sky gc` removes it.")


_CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "jupyter_sky": _jupyter_sky,
    "cloudpickle": _cloudpickle,
    "torch": _torch,
    "GPUs": _gpus,
    "shared memory": _shared_memory,
    "open files": _open_files,
    "disk": _disk,
    "registry": _registry,
    "loopback": _loopback,
    "leftovers": _leftovers,
}
