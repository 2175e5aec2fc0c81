"""Checks whether a host can be a node, for ``%sky doctor``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import as_sentence
from jupyter_sky.providers.diagnosis import CheckResult
from jupyter_sky.providers.node_defaults import ENOUGH_SHARED_MEMORY
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.host_shell import read_answer
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.code_package import check_python
from jupyter_sky.providers.ssh.setup.facts import HostFacts, check_folders, gather_facts

_ENOUGH_DISK = 10 * 2**30
_CLOCKS_AGREE = 5.0

_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps([torch.__version__, cuda, torch.cuda.device_count() if cuda else 0]))
"""


def diagnose(target: Target, python: str | None) -> Iterator[CheckResult]:
    """Run checks on a host, and yield the results.

    Parameters
    ----------
    target
        The host.
    python
        The interpreter to use there; ``None`` if an environment is made.
    """
    connection = pool.get(target)
    try:
        facts = gather_facts(connection)
    except SkyError as error:
        yield CheckResult("SSH", "cannot be used", as_sentence(f"{error}"))
        return
    yield CheckResult("SSH", "logged in")
    yield CheckResult("system", f"Linux on {facts.machine}, {facts.cpus} processors")
    yield _python(connection, facts, python)
    yield _gpus(facts)
    if python is not None:
        yield _torch(connection, facts, python)
    yield _disk(facts)
    yield _shared_memory(facts)
    yield _clock(connection)


def _python(connection: SSHConnection, facts: HostFacts, python: str | None) -> CheckResult:
    if python is None:
        found = f"made by {facts.uv}" if facts.uv else "made with uv, which is sent"
        return CheckResult("Python", found)
    try:
        check_python(connection, python)
    except HostError as error:
        return CheckResult("Python", python, f"{error}.")
    return CheckResult("Python", python)


def _gpus(facts: HostFacts) -> CheckResult:
    if facts.gpu_trouble:
        mend = "mend its driver, unless it has no GPU: after an upgrade, a reboot is often enough."
        return CheckResult("GPUs", f"nvidia-smi says: {facts.gpu_trouble}", mend)
    if not facts.gpus:
        return CheckResult("GPUs", "none that nvidia-smi shows, ranks use the CPU")
    counted = {name: facts.gpus.count(name) for name in facts.gpus}
    found = ", ".join(f"{count} × {name}" for name, count in counted.items())
    return CheckResult("GPUs", f"{found}, driver {facts.driver}")


def _torch(connection: SSHConnection, facts: HostFacts, python: str) -> CheckResult:
    try:
        command = shlex.join([python, "-P", "-c", _TORCH])
        version, cuda, count = read_answer(connection.run(command))
    except HostError:
        return CheckResult(
            "torch", "cannot be imported", "install it there, unless you use `--plugin none`."
        )
    if facts.gpus and not cuda:
        return CheckResult(
            "torch", f"{version}, which sees no GPU", "install a build for the driver's CUDA."
        )
    return CheckResult("torch", f"{version}, {count} GPUs" if cuda else version)


def _disk(facts: HostFacts) -> CheckResult:
    try:
        check_folders(facts)
    except HostError as error:
        return CheckResult("disk", "cannot be used", as_sentence(f"{error}"))
    few = facts.disk < _ENOUGH_DISK
    fix = "free some space: environments with CUDA take some gigabytes." if few else ""
    return CheckResult("disk", f"{facts.disk / 2**30:,.0f} GB free in {facts.cache}", fix)


def _shared_memory(facts: HostFacts) -> CheckResult:
    fix = "give a container more, as in `docker run --shm-size=8g`; data goes over the disk now."
    found = f"{facts.shared / 2**30:,.1f} GB free"
    return CheckResult("shared memory", found, fix if facts.shared < ENOUGH_SHARED_MEMORY else "")


def _clock(connection: SSHConnection) -> CheckResult:
    before = time.time()
    there = float(connection.run("date +%s"))
    after = time.time()
    # `date` cuts the fraction off.
    apart = max(before - there - 1, there - after, 0.0)
    if apart > _CLOCKS_AGREE:
        return CheckResult(
            "clock", f"{apart:,.0f} s apart", "set it there: `timedatectl set-ntp true`."
        )
    return CheckResult("clock", "agrees with the notebook's")
