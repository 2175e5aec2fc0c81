"""The environment variables of local ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.node_defaults import thread_variables
from jupyter_sky.providers.spec import Image


def rank_variables(image: Image, ranks: int) -> dict[str, str]:
    """Return the variables of every rank.

    Parameters
    ----------
    image
        The image that the user wants.
    ranks
        Number of ranks that share this computer's processors.

    Raises
    ------
    SkyError
        If a command for a variable fails.
    """
    # A value that the notebook has also applies to its nodes.
    threads = {} if "OMP_NUM_THREADS" in os.environ else thread_variables(ranks, _cpus())
    return {**threads, **image_variables(image)}


def image_variables(image: Image) -> dict[str, str]:
    """Return the variables of an image, with the output of commands run here.

    Raises
    ------
    SkyError
        If a command for a variable fails.
    """
    return {**image.env, **_shell_variables(image.shell_vars)}


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shell_variables(commands: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, command in commands.items():
        done = subprocess.run(
            command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise SkyError(
                f"shell_vars[{name!r}] has no value: {command!r} ended with status "
                f"{done.returncode}, {last_line(done.stderr)}"
            )
        found[name] = done.stdout.rstrip("\n")
    return found
