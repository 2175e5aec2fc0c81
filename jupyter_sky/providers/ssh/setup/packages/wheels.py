"""Sends the wheels of this computer that an environment is made from."""

from __future__ import annotations

import io
import shlex
import tarfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from jupyter_sky.formatting import format_bytes
from jupyter_sky.providers.ssh.connection.host_shell import HostShell
from jupyter_sky.providers.ssh.relay import Relay, RelayedFile
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.providers.ssh.setup.packages.recipe import Recipe


def send_wheels(
    connection: HostShell,
    facts: HostFacts,
    recipe: Recipe,
    relay: Relay,
    report: Callable[[str], None],
) -> str | None:
    """Send the wheels of a recipe, and return their folder; ``None`` if it has none."""
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
