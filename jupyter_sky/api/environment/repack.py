"""Repacks installed packages that no index has into wheels.

A package that was installed from a local folder, a repository or a file is sent as it is installed:
a node needs neither its source nor its build tools.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

from jupyter_sky.api.environment import wheel_folders


def wheel_of(distribution: Distribution) -> Path | None:
    """Return a wheel of an installed package; ``None`` if nodes could not use one.

    They cannot if its files are not known, or if it was built for another system than theirs.
    """
    record, about = distribution.read_text("RECORD"), distribution.read_text("WHEEL")
    if not record or not about or not re.search(r"^Tag: \S+-(any|\S*linux\S*)$", about, re.M):
        return None
    mark = hashlib.sha256(record.encode()).hexdigest()[:16]
    path = wheel_folders.parent() / mark / _file_name(distribution, about)
    if path.exists():
        wheel_folders.note_use(path)
    else:
        path.parent.mkdir(exist_ok=True)
        # Of its own: another notebook may make the same one at this moment.
        descriptor, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
        os.close(descriptor)
        part = Path(name)
        try:
            _pack(distribution, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _file_name(distribution: Distribution, about: str) -> str:
    tags = [line.split("-") for line in re.findall(r"^Tag: (\S+)$", about, re.MULTILINE)]
    parts = (".".join(dict.fromkeys(tag[part] for tag in tags)) for part in range(3))
    name = re.sub(r"[-_.]+", "_", distribution.metadata["Name"])
    return f"{name}-{distribution.version}-{'-'.join(parts)}.whl"


def _pack(distribution: Distribution, path: Path) -> None:
    files = distribution.files or ()
    about = next(str(each.parent) for each in files if each.parent.suffix == ".dist-info")
    # Files of reproducible builds are of 1970, before the first year that an archive knows.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as wheel:
        for file in files:
            # Wheels do not contain files that an installer has put elsewhere or made itself.
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            if str(file.parent) == about and file.name in _MADE_BY_INSTALLERS:
                continue
            if Path(str(file.locate())).is_file():
                wheel.write(str(file.locate()), str(file))
        record = f"{about}/RECORD"
        names = [*wheel.namelist(), record]
        wheel.writestr(record, "".join(f"{each},,\n" for each in names))


_MADE_BY_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
