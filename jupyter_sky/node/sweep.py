"""Sweep out what dead agents left: ``python -m jupyter_sky.node.sweep FOLDER``.

An agent removes its files when it ends. One that was killed, or whose machine lost its power,
leaves them; the next that starts there on behalf of the same person has them removed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
from pathlib import Path


def main(parent: Path) -> None:
    """Remove the folders of agents in ``parent`` that do not listen any more."""
    for folder in parent.iterdir():
        if (folder / "agent.sock").exists() and _is_dead(folder / "agent.sock"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                blobs = json.loads((folder / "spec.json").read_text())["blobs"]
                shutil.rmtree(blobs, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)


def _is_dead(path: Path) -> bool:
    """Return whether nobody listens; also an agent in another container counts as somebody."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1)
        try:
            sock.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
