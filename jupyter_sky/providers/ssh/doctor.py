"""Is a host fit to be a node? One look after the other, each with what to do about it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection.connection import HostError, Line, lines
from jupyter_sky.providers.ssh.connection.targets import Target
from jupyter_sky.providers.ssh.setup.agent import ROOMY, check_python
from jupyter_sky.providers.ssh.setup.probe import Probe, probe

_ENOUGH_DISK = 10 * 2**30
_CLOCKS_AGREE = 5.0

_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps([torch.__version__, cuda, torch.cuda.device_count() if cuda else 0]))
"""


def examine(target: Target, python: str | None) -> Iterator[tuple[str, str, str]]:
    """Look at a host; give the name of each look, what was found, and what to do about it.

    Parameters
    ----------
    target
        The host.
    python
        The interpreter that is used there; ``None`` if an environment is made.
    """
    line = lines.get(target)
    try:
        line.connect()
        yield "SSH", "logged in", ""
        here = probe(line)
    except SkyError as error:
        yield "SSH", "cannot be used", f"{error}."
        return
    yield "system", f"Linux on {here.machine}, {here.cpus} processors", ""
    yield _python(line, here, python)
    yield _gpus(here)
    if python is not None:
        yield _torch(line, here, python)
    yield _disk(here)
    yield _shared_memory(here)
    yield _clock(line)


def _python(line: Line, here: Probe, python: str | None) -> tuple[str, str, str]:
    if python is None:
        found = f"made by {here.uv}" if here.uv else "made by uv, which is sent"
        return "Python", found, ""
    try:
        check_python(line, python)
    except HostError as error:
        return "Python", python, f"{error}."
    return "Python", python, ""


def _gpus(here: Probe) -> tuple[str, str, str]:
    if not here.gpus:
        return "GPUs", "none that nvidia-smi shows, ranks use the CPU", ""
    counted = {name: here.gpus.count(name) for name in here.gpus}
    found = ", ".join(f"{count} × {name}" for name, count in counted.items())
    return "GPUs", f"{found}, driver {here.driver}", ""


def _torch(line: Line, here: Probe, python: str) -> tuple[str, str, str]:
    try:
        command = shlex.join([python, "-P", "-c", _TORCH])
        version, cuda, count = json.loads(line.run(command).splitlines()[-1])
    except (HostError, ValueError, IndexError):
        return "torch", "cannot be imported", "install it there, unless you use `--plugin none`."
    if here.gpus and not cuda:
        return "torch", f"{version}, which sees no GPU", "install a build for the driver's CUDA."
    return "torch", f"{version}, {count} GPUs" if cuda else version, ""


def _disk(here: Probe) -> tuple[str, str, str]:
    few = here.disk < _ENOUGH_DISK
    fix = "make room: environments with CUDA take some gigabytes." if few else ""
    return "disk", f"{here.disk / 2**30:,.0f} GB free in {here.home}", fix


def _shared_memory(here: Probe) -> tuple[str, str, str]:
    fix = "give a container more, as in `docker run --shm-size=8g`; data goes over the disk now."
    found = f"{here.shared / 2**30:,.1f} GB free"
    return "shared memory", found, fix if here.shared < ROOMY else ""


def _clock(line: Line) -> tuple[str, str, str]:
    before = time.time()
    there = float(line.run("date +%s"))
    after = time.time()
    # `date` cuts the fraction off.
    apart = max(before - there - 1, there - after, 0.0)
    if apart > _CLOCKS_AGREE:
        return "clock", f"{apart:,.0f} s apart", "set it there: `timedatectl set-ntp true`."
    return "clock", "agrees with the notebook's", ""
