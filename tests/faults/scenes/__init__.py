"""What can break, as scenes: each is played on real processes and hosts.

The tests hold what is said, and that nothing is left behind; the benchmarks take the times.
"""

from __future__ import annotations

from tests.faults.scenes import clocks, kernels, links, nodes, plugins, registries

SCENES = (
    *kernels.SCENES,
    *registries.SCENES,
    *plugins.SCENES,
    *nodes.SCENES,
    *(clocks.SCENES if clocks.missing() is None else ()),
)
HOST_SCENES = links.SCENES
