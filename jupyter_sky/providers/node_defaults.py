"""Defaults common to the nodes of all providers: libraries, blobs, and threads of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

NEEDED = {
    "IPython": "ipython>=8.20",
    "blake3": "blake3>=1.0",
    "cloudpickle": "cloudpickle>=3.0",
    "msgpack": "msgpack>=1.0.5",
    "psutil": "psutil>=5.9.5",
    "pynvml": "nvidia-ml-py>=12.535",
}
"""What our part of a node imports, and the requirement that pip installs for it."""

SHARED_MEMORY = Path("/dev/shm")

ENOUGH_SHARED_MEMORY = 2**30
"""Bytes of free shared memory from which on blobs are kept there."""

BLOBS_OF = "jupyter-sky-{}"
"""Name of the folder in shared memory that belongs to an agent's folder of that name."""


def free_shared_memory() -> int:
    """Return the bytes of shared memory that are free here."""
    return shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0


def blob_folder(agent: str, free: int) -> str:
    """Return the folder for an agent's blobs: in shared memory, if that is large enough.

    Containers often have only 64 MB of shared memory; then the disk, with its cache, is better.

    Parameters
    ----------
    agent
        The agent's own folder.
    free
        Bytes of free shared memory on the node.
    """
    if free < ENOUGH_SHARED_MEMORY:
        return f"{agent}/blobs"
    return f"{SHARED_MEMORY.as_posix()}/{BLOBS_OF.format(PurePosixPath(agent).name)}"


def thread_variables(ranks: int, cpus: int) -> dict[str, str]:
    """Return variables that divide a node's processors among its ranks, as torchrun does."""
    return {"OMP_NUM_THREADS": str(max(1, cpus // ranks))} if ranks > 1 else {}
