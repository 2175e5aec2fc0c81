"""The provider of light nodes: a few processes of this machine, each with many agents."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_sky.providers.base import Machine, Node, Progress
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.providers.local.placement import place_nodes, rank_specs
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted

_AGENTS = 64
"""Agents in one process: each takes about a dozen descriptors, and as many for each rank."""


@dataclass(frozen=True)
class Light:
    """Nodes whose agents and links are real, and whose ranks only answer."""

    name = "light"
    default_nodes = 1

    def check(self, spec: ClusterSpec, preload: Sequence[str], present: int = 0) -> tuple[str, ...]:
        """Refuse nothing."""
        return ()

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Start an agent for each node."""
        nodes = place_nodes(spec, [])
        names = [f"node {node.node}" for node in nodes]
        shown: Sequence[Credentials | None] = [None]
        if len(nodes) > 1:
            shown = issue_credentials(names)
        place = Path(tempfile.mkdtemp(prefix="sky-light-"))
        machines = [
            _prepare(place, spec, identity, node, own)
            for node, own in zip(nodes, shown, strict=True)
        ]
        parts = [machines[i : i + _AGENTS] for i in range(0, len(machines), _AGENTS)]
        served = await asyncio.gather(*map(_serve, parts))
        return [machine for part in served for machine in part]

    def machine(self, row: Mapping[str, Any]) -> LocalMachine:
        """Return the machine that ``row`` describes."""
        return LocalMachine.from_row(row)


def _prepare(
    place: Path, spec: ClusterSpec, identity: str, node: Node, own: Credentials | None
) -> LocalMachine:
    """Write what an agent is to be; it is not there yet."""
    folder, blobs = place / str(node.node), place / f"{node.node}.blobs"
    folder.mkdir()
    blobs.mkdir()
    wanted = AgentSpec(
        cluster=spec.name,
        id=identity,
        socket=str(folder / "agent.sock"),
        blobs=str(blobs),
        ranks=tuple(rank_specs([node], [])),
        credentials=asdict(own) if own else None,
        grace=60.0,
        cwd=str(folder),
    )
    (folder / "spec.json").write_text(wanted.to_json())
    return LocalMachine(folder, blobs, 0, (node,), shares_files=True)


async def _serve(machines: Sequence[LocalMachine]) -> list[Machine]:
    """Start the process of some agents, and return their machines when all of them listen."""
    folders = [str(machine.folder) for machine in machines]
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.benchmarks.light", *folders],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    started: dict[str, AgentStarted] = {}
    for _ in machines:
        started |= json.loads(await process.stdout.readline())
    return [_listening(machine, started[str(machine.folder)]) for machine in machines]


def _listening(machine: LocalMachine, started: AgentStarted) -> LocalMachine:
    [node] = machine.nodes
    there = replace(node, port=started["port"], fingerprint=started["fingerprint"])
    return replace(machine, pid=started["pid"], nodes=(there,))
