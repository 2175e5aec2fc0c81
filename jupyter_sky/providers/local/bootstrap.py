"""Runs the shell commands of an image on this computer."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_command, last_line
from jupyter_sky.providers.base import Progress


async def bootstrap(
    commands: Sequence[str], folder: Path, env: Mapping[str, str], progress: Progress
) -> None:
    """Run shell commands, one after the other.

    Parameters
    ----------
    folder
        The folder to run them in.
    env
        Environment variables besides those of the notebook.

    Raises
    ------
    SkyError
        With the last line of the first command that fails.
    """
    for command in commands:
        progress(f"running {format_command(command)}")
        # A file, not a pipe, which a daemon left behind by the command would keep open.
        with tempfile.TemporaryFile() as said:
            process = await asyncio.create_subprocess_shell(
                command,
                stdin=DEVNULL,
                stdout=said,
                stderr=said,
                cwd=folder,
                env={**os.environ, **env},
                start_new_session=True,
            )
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            said.seek(0)
            text = said.read().decode(errors="replace")
        if status:
            raise SkyError(
                f"{format_command(command)} ended with status {status}, {last_line(text)}"
            )
