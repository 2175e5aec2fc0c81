"""What can be rented: the instance types of a region, and in which of its zones they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import explain_errors
from jupyter_sky.providers.aws.local_store import cached

_WEEK = 7 * 86400.0

# What one accelerator is called here, where AWS says otherwise or tells sizes apart by memory.
_NAMES = {
    ("A100", 80): "A100-80GB",
    ("V100", 32): "V100-32GB",
    ("T4g", 16): "T4G",
    ("RTX PRO Server 6000", 96): "RTXPRO6000",
}

_SURPLUS = 0.05
"""Dollars an hour of a processor of a burstable type beyond its baseline."""

_ON_DEMAND = {
    "f": "Running On-Demand F instances",
    "g": "Running On-Demand G and VT instances",
    "hpc": "Running On-Demand HPC instances",
    "inf": "Running On-Demand Inf instances",
    "p": "Running On-Demand P instances",
    "trn": "Running On-Demand Trn instances",
    "u": "Running On-Demand High Memory instances",
    "vt": "Running On-Demand G and VT instances",
    "x": "Running On-Demand X instances",
}
_STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


@dataclass(frozen=True)
class InstanceType:
    """A type of machine.

    Attributes
    ----------
    cpus, memory
        Processors, and GiB.
    architecture
        ``"x86_64"`` or ``"arm64"``.
    gpu, gpus, gpu_memory
        The name of its accelerator here, how many there are, and the GiB of one.
    is_cuda
        Whether that is an NVIDIA GPU.
    efa
        How many network cards can have an EFA interface each; 0 where none can.
    clusters
        Whether machines of it can be placed close together.
    has_spot
        Whether it is there as spot.
    is_plain
        Whether it is one to take when only processors and memory matter: of this generation, not
        burstable, not bare metal, without special hardware.
    zones
        Where it is offered.
    """

    name: str
    cpus: int
    memory: float
    architecture: str
    gpu: str | None
    gpus: int
    gpu_memory: float
    is_cuda: bool
    efa: int
    clusters: bool
    has_spot: bool
    is_plain: bool
    zones: tuple[str, ...] = ()

    @property
    def surplus(self) -> float:
        """The dollars an hour that it costs more where all of its processors are always busy.

        Burstable types run beyond their baseline as long as they have to, by default, which AWS
        charges by processor: https://aws.amazon.com/ec2/pricing/on-demand/
        """
        return _SURPLUS * self.cpus if re.match(r"t[3-9]", self.name) else 0.0

    def quota(self, spot: bool) -> str:
        """Return AWS's name of the quota that limits how many can run."""
        letters = re.match(r"[a-z]+", self.name)
        family = letters[0] if letters else ""
        family = next((each for each in ("hpc", "inf", "trn", "vt") if family == each), family[:1])
        if not spot:
            return _ON_DEMAND.get(family, f"Running On-Demand {_STANDARD} instances")
        if family == "p":
            new = self.name.startswith("p5")
            return f"All {'P5' if new else 'P4, P3 and P2'} Spot Instance Requests"
        name = _ON_DEMAND.get(family)
        kind = name.removeprefix("Running On-Demand ") if name else _STANDARD
        return f"All {kind.removesuffix(' instances')} Spot Instance Requests"


@dataclass(frozen=True)
class Catalog:
    """The instance types of a region, by name, and how old this knowledge is, in seconds."""

    region: str
    types: Mapping[str, InstanceType]
    age: float = 0.0


def catalog(clients: Clients) -> Catalog:
    """Return what a region has; it is asked once a week."""
    rows, age = cached(f"types-{clients.region}", _WEEK, lambda: _ask(clients.ec2))
    read, types = _last_read.get(clients.region, (None, {}))
    if read is not rows:
        types = {row["name"]: InstanceType(**{**row, "zones": tuple(row["zones"])}) for row in rows}
        _last_read[clients.region] = rows, types
    return Catalog(clients.region, types, age)


_last_read: dict[str, tuple[Any, dict[str, InstanceType]]] = {}
"""By region, the rows of its file, and what was made of them: a command looks several times."""


def _ask(ec2: Any) -> list[dict[str, Any]]:
    zones: dict[str, list[str]] = {}
    with explain_errors():
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone"
        )
        for offer in pages.search("InstanceTypeOfferings[]"):
            zones.setdefault(offer["InstanceType"], []).append(offer["Location"])
        found = [*ec2.get_paginator("describe_instance_types").paginate().search("InstanceTypes[]")]
    return [
        {**asdict(_read(each)), "zones": sorted(zones[each["InstanceType"]])}
        for each in found
        if each["InstanceType"] in zones
    ]


def _read(described: Mapping[str, Any]) -> InstanceType:
    name, count, size, is_cuda = _accelerator(described)
    network = described.get("NetworkInfo", {})
    special = (
        "GpuInfo",
        "NeuronInfo",
        "FpgaInfo",
        "InferenceAcceleratorInfo",
        "MediaAcceleratorInfo",
    )
    return InstanceType(
        name=described["InstanceType"],
        cpus=described["VCpuInfo"]["DefaultVCpus"],
        memory=described["MemoryInfo"]["SizeInMiB"] / 1024,
        architecture=_architecture(described["ProcessorInfo"]["SupportedArchitectures"]),
        gpu=name,
        gpus=count,
        gpu_memory=size,
        is_cuda=is_cuda,
        efa=min(
            network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
            network.get("MaximumNetworkCards", 1),
        ),
        clusters="cluster"
        in described.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        has_spot="spot" in described.get("SupportedUsageClasses", ()),
        is_plain=described["CurrentGeneration"]
        and not described["BareMetal"]
        and not described["BurstablePerformanceSupported"]
        and not any(described.get(each) for each in special),
    )


def _accelerator(described: Mapping[str, Any]) -> tuple[str | None, int, float, bool]:
    """Return name, count and GiB of a machine's accelerators, and whether they run CUDA."""
    gpus = described.get("GpuInfo", {}).get("Gpus", ())
    neurons = (described.get("NeuronInfo") or {}).get("NeuronDevices", ())
    for each in (*gpus, *neurons):
        size = round(each.get("MemoryInfo", {}).get("SizeInMiB", 0) / 1024, 1)
        name = _NAMES.get((each["Name"], round(size)), each["Name"].replace(" ", ""))
        # A count of 0 is a part of a GPU.
        if each["Count"]:
            return name, each["Count"], size, each.get("Manufacturer") == "NVIDIA"
    return None, 0, 0.0, False


def _architecture(supported: list[str]) -> str:
    return "x86_64" if "x86_64" in supported else supported[0]
