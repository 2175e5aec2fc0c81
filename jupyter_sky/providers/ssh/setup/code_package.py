"""Our own package, as it is sent to nodes: built from the one that is installed here."""

from __future__ import annotations

import functools
import io
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import blake3

import jupyter_sky

_LEFT_OUT = {"__pycache__", "static"}

NEEDED = {
    "IPython": "ipython>=8.20",
    "blake3": "blake3>=1.0",
    "cloudpickle": "cloudpickle>=3.0",
    "msgpack": "msgpack>=1.0.5",
    "psutil": "psutil>=5.9.5",
    "pynvml": "nvidia-ml-py>=12.535",
}
"""What our part of a node imports, and how pip calls it."""


@dataclass(frozen=True)
class Package:
    """An archive, and a name for what is in it that nothing else has."""

    digest: str
    archive: bytes = field(repr=False)


@functools.cache
def package() -> Package:
    """Return our package as a compressed tar archive."""
    root = Path(jupyter_sky.__file__).parent
    hasher = blake3.blake3()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(root.rglob("*")):
            place = path.relative_to(root.parent)
            if not path.is_file() or _LEFT_OUT & set(place.parts):
                continue
            content = path.read_bytes()
            hasher.update(f"{place.as_posix()}\0{len(content)}\0".encode() + content)
            entry = tarfile.TarInfo(place.as_posix())
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return Package(hasher.hexdigest()[:32], stream.getvalue())
