"""Prepares nodes that do not share the login node's home, all in parallel."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.providers.slurm.environment import NodeEnvironment, prepared
from jupyter_sky.providers.slurm.homes.step_shell import StepShell
from jupyter_sky.providers.slurm.homes.waiting import TASK, go
from jupyter_sky.providers.slurm.jobs import addresses_of, number_of, own_hosts_of
from jupyter_sky.providers.slurm.on_node import ANSWER
from jupyter_sky.providers.slurm.script import JobRequest, agent_command, agent_lines
from jupyter_sky.providers.slurm.start_folder import StartFolder
from jupyter_sky.providers.ssh.machine import in_thread, submit
from jupyter_sky.providers.ssh.relay import Relay
from jupyter_sky.providers.ssh.setup.host_progress import HostProgress

N = TypeVar("N")
T = TypeVar("T")


@dataclass(frozen=True)
class WaitingNodes:
    """Nodes of a job that wait to be prepared.

    Attributes
    ----------
    job
        The job, or the step in which they wait.
    folder
        The folder of the start on the login node.
    cluster
        Their cluster.
    python
        Their interpreter; ``None`` makes an environment on each.
    request
        The user's wishes for the job.
    specs
        The specification of each task's agent, except facts of its node.
    """

    job: str
    folder: StartFolder
    cluster: RunningCluster
    python: str | None
    request: JobRequest
    specs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _PreparedNode:
    """A node whose task can start its agent.

    Attributes
    ----------
    shell
        Runs scripts there.
    task
        The number of its task.
    environment
        What was made there.
    """

    shell: StepShell
    task: int
    environment: NodeEnvironment


async def equip(
    nodes: WaitingNodes, done: Collection[int], left_out: Sequence[str], progress: Progress
) -> None:
    """Start the agents of nodes, and write their answers into the folder of the start.

    Parameters
    ----------
    done
        The tasks whose agents were started before.
    left_out
        Sentences about what nodes will not have.

    Raises
    ------
    SkyError
        With the error of each node that cannot be used.
    """
    at, job = nodes.folder.at, number_of(nodes.job)
    hosts = await own_hosts_of(at, nodes.job)
    addresses = await addresses_of(at, hosts)
    steps, relay = HostProgress(hosts, progress), Relay(len(hosts))
    for sentence in left_out:
        steps.announce(sentence)
    shells = [
        StepShell(at, job, host, addresses[host], nodes.folder.name, number)
        for number, host in enumerate(hosts)
    ]

    def prepare(shell: StepShell) -> _PreparedNode | None:
        steps.report(shell.target, "looking for the task that waits", 0.0)
        task = int(shell.run(TASK).split()[0])
        if task in done:
            return None
        made = prepared(shell, nodes.cluster, nodes.python, relay, steps)
        return _PreparedNode(shell, task, made)

    def start(node: _PreparedNode) -> Mapping[str, Any]:
        made, target = node.environment, node.shell.target
        steps.report(target, "starting", 0.9)
        spec = {**nodes.specs[node.task], **made.of_the_agent()}
        specs = {"specs": [*[None] * node.task, spec]}  # of which its task takes its own
        script = go(_command(nodes.request, made))
        said = node.shell.run(script, json.dumps(specs).encode())
        steps.report(target, "ready", 1.0)
        return {**json.loads(last_line(said)), "python": made.python, "code": made.code}

    try:
        try:
            found = await _on_each(prepare, {each.target: each for each in shells}, steps)
        finally:
            # Cleaning up uses steps as well, which need the folders in which the tasks wait.
            await in_thread(relay.close)
        waiting = {each.shell.target: each for each in found if each}
        said = await _on_each(start, waiting, steps)
    except asyncio.CancelledError:
        steps.stop()
        for shell in shells:
            await in_thread(shell.abort)
        raise
    except SkyError as error:
        raise SkyError(f"job {job}, {error}") from None
    for each in said:
        await nodes.folder.write(ANSWER.format(each["task"]), f"{json.dumps(each)}\n")


async def _on_each(
    function: Callable[[N], T], nodes: Mapping[str, N], steps: HostProgress
) -> list[T]:
    """Call a function with each node, in parallel, and return the results; nodes have names."""

    def call(name: str, node: N) -> T:
        try:
            return function(node)
        except SkyError as error:
            steps.fail(name, str(error))
            raise SkyError(f"{name}: {str(error).rstrip('.')}") from None

    begun = [asyncio.wrap_future(submit(call, *each)) for each in nodes.items()]
    done = await asyncio.gather(*begun, return_exceptions=True)
    wrong = [each for each in done if isinstance(each, BaseException)]
    if all(isinstance(each, SkyError) for each in wrong) and wrong:
        raise SkyError("; ".join(map(str, wrong)))
    for each in wrong:
        raise each
    return [each for each in done if not isinstance(each, BaseException)]


def _command(request: JobRequest, found: NodeEnvironment) -> str:
    """Return the command that a waiting task reads once its node is ready."""
    image = [request.container] if request.container else []
    agent = shlex.join(agent_command(request, found))
    return (
        f'umask "$own"\n{agent_lines(request, found)}\nexec {agent} "$folder" {shlex.join(image)}\n'
    )
