"""uv, which makes environments: the host's own, or one that is sent."""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from jupyter_sky.formatting import format_duration
from jupyter_sky.paths import home
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.relay import Relay, RelayedFile
from jupyter_sky.providers.ssh.setup.facts import HostFacts

_DOWNLOAD_WITHIN = 300.0
_OLDEST = (0, 5)  # indexes in a pyproject.toml as it has them, and environments that can be moved


def find_uv(
    connection: HostShell, facts: HostFacts, relay: Relay, report: Callable[[str], None]
) -> str:
    """Return the path of uv on a host; where there is none that will do it is sent.

    Parameters
    ----------
    relay
        Brings it: from here to one host, and to others from there.

    Raises
    ------
    HostError
        When there is none for this kind of machine.
    """
    if facts.uv and _is_usable(connection, facts.uv):
        return facts.uv
    path, machine = facts.sent_uv, facts.machine
    quoted = shlex.quote(path)
    if _is_usable(connection, path):
        return path
    content, digest = relay.content(f"uv {machine}", lambda: uv_program(machine).read_bytes())

    def send() -> None:
        import gzip

        report("sending uv")
        connection.run(
            f"""
            set -e; umask 077
            mkdir -p "$(dirname {quoted})"
            new=$(mktemp {quoted}.XXXXXX)
            gzip -dc >"$new"
            chmod 700 "$new"
            mv "$new" {quoted}
            """,
            gzip.compress(content, 1),
        )

    relay.bring(connection, facts, RelayedFile("uv", digest, path), send, report)
    return path


def _is_usable(connection: HostShell, uv: str) -> bool:
    """Return whether the uv of a host runs there, and is not too old."""
    said = connection.run(f"{shlex.quote(uv)} --version 2>/dev/null || true")
    found = re.search(r"^uv (\d+)\.(\d+)", said, re.MULTILINE)
    return found is not None and (int(found[1]), int(found[2])) >= _OLDEST


def uv_program(machine: str) -> Path:
    """Return uv for a kind of machine: the one that is installed here, or the index's.

    Raises
    ------
    HostError
        When there is none.
    """
    # The machine names its kind itself, and it becomes part of a path here.
    if not re.fullmatch(r"\w{1,32}", machine, re.ASCII):
        raise HostError(
            "it has no uv, and does not say what kind of machine it is: run `pip install uv` there"
        )
    if sys.platform == "linux" and machine == platform.machine() and _libc() == "glibc":
        if importlib.util.find_spec("uv"):
            from uv import find_uv_bin

            return Path(find_uv_bin())
    kept = home() / f"uv-{machine}"
    if not kept.exists() and (trouble := _download(machine, kept)):
        raise HostError(
            f"it has no uv, which makes environments, and {trouble}: run `pip install uv` there, "
            "or name an interpreter with `%config Sky.python`"
        )
    return kept


def _download(machine: str, to: Path) -> str:
    """Download uv for a kind of machine; return why it is not there, or an empty text."""
    # The current folder is not on its path: a `pip.py` there must not be run.
    pip = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
    wanted = ["--only-binary", ":all:", "--platform", f"manylinux2014_{machine}", "uv"]
    try:
        with tempfile.TemporaryDirectory(dir=home()) as folder:
            done = subprocess.run(
                [*pip, "-d", folder, *wanted], capture_output=True, timeout=_DOWNLOAD_WITHIN
            )
            wheels = list(Path(folder).glob("uv-*.whl"))
            if b"No module named pip" in done.stderr:
                return "the notebook's environment has no pip to download it with"
            if done.returncode or not wheels:
                return f"there is none here for {machine}"
            with zipfile.ZipFile(wheels[0]) as wheel:
                [member] = [name for name in wheel.namelist() if name.endswith("/scripts/uv")]
                (Path(folder) / "uv").write_bytes(wheel.read(member))
            (Path(folder) / "uv").rename(to)
    except subprocess.TimeoutExpired:
        return f"the download here takes more than {format_duration(_DOWNLOAD_WITHIN)}"
    except OSError as error:
        return f"the download here failed ({error})"
    return ""


def _libc() -> str:
    return platform.libc_ver()[0]
