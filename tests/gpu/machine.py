"""The GPUs of this machine: what `nvidia-smi` lists, and whether PyTorch can use them."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

_FIELDS = "uuid,name,driver_version,memory.total,mig.mode.current"
_ASK_TORCH = "import torch; print(torch.__version__, torch.cuda.is_available())"


@dataclass(frozen=True)
class ListedGPU:
    """A GPU, as `nvidia-smi` lists it; ``memory`` is in MiB."""

    uuid: str
    name: str
    driver: str
    memory: float
    is_divided: bool


@dataclass(frozen=True)
class GPUMachine:
    """A machine with a GPU that PyTorch can use."""

    gpus: tuple[ListedGPU, ...]
    torch: str

    def __str__(self) -> str:
        first = self.gpus[0]
        return (
            f"{len(self.gpus)} × {first.name} (driver {first.driver}), PyTorch {self.torch}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
        )


@cache
def find() -> GPUMachine | str:
    """Return this machine, or the sentence that says why nothing can be shown on it."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here: there is no `nvidia-smi`."
    rows = smi(_FIELDS)
    if isinstance(rows, str):
        return f"no NVIDIA GPU here: `nvidia-smi` says {rows}."
    # In a process of its own: what touches CUDA cannot fork afterwards.
    asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True)
    if asked.returncode:
        return f"{sys.executable} has no PyTorch that can be imported: choose one with PYTHON=…"
    version, can_use = asked.stdout.split()
    if can_use != "True":
        return f"PyTorch {version} of {sys.executable} cannot use the GPU of this machine."
    gpus = (
        ListedGPU(uuid, name, driver, float(memory), mode == "Enabled")
        for uuid, name, driver, memory, mode in rows
    )
    return GPUMachine(tuple(gpus), version)


def smi(fields: str, what: str = "gpu") -> list[list[str]] | str:
    """Return what `nvidia-smi` lists, a row for each; or what it complains of."""
    asked = subprocess.run(
        ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
    )
    said = asked.stdout.strip()
    if asked.returncode or not said:
        return (said or asked.stderr.strip() or "nothing").splitlines()[0]
    return [row.split(", ") for row in said.splitlines()]


def parts() -> list[str]:
    """Return the UUIDs of the parts that GPUs are divided into (MIG)."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [row.rpartition("UUID: ")[2].rstrip(")") for row in listed.splitlines() if "MIG-" in row]
