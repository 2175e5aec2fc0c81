"""The program that srun runs on each node of a job.

``python -m jupyter_sky.providers.slurm.on_node FOLDER [IMAGE]`` starts the agent, in a container if
there is an image, and runs for as long as the agent: processes that a Slurm task leaves behind are
killed when the task ends. Slurm sends it SIGTERM when the job ends, or earlier if the job is
preempted with a grace period; in either case it asks how long the job will continue, and lets the
agent announce that.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_duration
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.agent import start_agent
from jupyter_sky.providers.node_defaults import blob_folder, free_shared_memory, thread_variables
from jupyter_sky.providers.slurm.job_state import JobState
from jupyter_sky.transport.protocol.agent_spec import NOTICE_FILE, AgentSpec, RankSpec

SPECS = "specs.json"
"""The specifications of the agents, by the numbers of their tasks, and what makes them."""

ANSWER = "node-{}.json"
"""What a node says of its agent, or why there is none; it has the number of its task."""

_START_WITHIN = 600  # seconds; where many nodes read Python from one disk, it takes minutes
_PULLED_WITHIN = 3600  # seconds, for images that are downloaded and converted first
_NOTICE = 120.0  # seconds before the end of the job, as on EC2
_LOOK_EVERY = 60.0  # most seconds until the clock is checked again
_TRIES, _PAUSE = 20, 1.0  # times, and seconds: usually Slurm waits for 30 until it kills


def first_grace(grace: float, image: str | None) -> float:
    """Return the seconds that a node waits for its first notebook, which waits for all nodes.

    They may come up far apart, in a container if there is an image.
    """
    return max(grace, _starts_within(image))


def main(job: Path, image: str, umask: int) -> None:
    """Start the agent of this node, and wait until it has ended.

    Parameters
    ----------
    job
        The folder of the start.
    image
        The image for Apptainer to run the agent in; empty for none.
    umask
        The umask of the user's programs.
    """
    number = int(os.environ["SLURM_PROCID"])
    specs = json.loads((job / SPECS).read_text())["specs"]
    spec = AgentSpec.from_json(json.dumps(specs[number]))
    answer = job / ANSWER.format(number)
    # Random: the rest is visible in the queue, and somebody could take the name before.
    folder = of_the_user() / f"{spec.id}-{secrets.randbelow(10**12):012}"
    blobs = Path(blob_folder(str(folder), free_shared_memory()))
    for sent in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sent, _leave)
    try:
        folder.mkdir(mode=0o700)
        blobs.mkdir(mode=0o700)
        try:
            with _limited(_starts_within(image)):
                here = replace(
                    spec,
                    socket=str(folder / "agent.sock"),
                    blobs=str(blobs),
                    ranks=tuple(_with_gpus(spec.ranks)),
                    env=_variables(spec),
                    peer=_another_node(number, spec.peer),
                    umask=umask,
                )
                within = _container(image, here) if image else ()
                started: dict[str, Any] = {**start_agent(folder, here, within)}
        except SkyError as error:
            _write(answer, json.dumps({"task": number, "failed": str(error)}))
            raise
        try:
            started |= {"task": number, "folder": str(folder), "keeper": os.getpid()}
            started |= {"host": os.environ["SLURMD_NODENAME"]}
            _write(answer, json.dumps(started))
            _Keeper(started["pid"], folder / NOTICE_FILE).wait()
        finally:
            _end(started["pid"])
    finally:
        shutil.rmtree(blobs, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _starts_within(image: str | None) -> int:
    return _PULLED_WITHIN if image else _START_WITHIN


@contextlib.contextmanager
def _limited(within: int) -> Iterator[None]:
    """Give up a start that hangs: the job would go on, and no agent is there to end it."""

    def give_up(*_: object) -> None:
        raise SkyError(f"the agent did not start within {format_duration(within)}")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(within)
    try:
        yield
    finally:
        signal.alarm(0)


class _Keeper:
    """Waits for the end of the agent, and lets it announce the end of the job."""

    def __init__(self, agent: int, notice: Path) -> None:
        self._agent = agent
        self._notice = notice
        self._ends_at, self._is_known = math.inf, False
        self._told: float | None = None
        self._ask()
        signal.signal(signal.SIGTERM, self._on_term)

    def wait(self) -> None:
        """Return when the agent has ended."""
        while True:
            if self._is_soon() and self._told != self._ends_at:
                self._tell()
            left = self._ends_at - _NOTICE - time.time()
            if _ends_within(self._agent, min(left, _LOOK_EVERY) if left > 0 else _LOOK_EVERY):
                return
            if self._is_soon() or not self._is_known:
                # The job's time limit may have been extended.
                self._ask()

    def _ask(self) -> bool:
        """Ask Slurm for the end of the job; return whether it answers."""
        if (end := _said_end()) is None:
            return False
        self._ends_at, self._is_known = end, True
        return True

    def _is_soon(self) -> bool:
        return self._ends_at - _NOTICE <= time.time()

    def _on_term(self, *_: object) -> None:
        # Slurm's controller may have no time just now, as it ends many jobs for a larger one.
        for _attempt in range(_TRIES):
            if self._ask():
                break
            time.sleep(_PAUSE)
        else:
            _leave()
        if not time.time() < self._ends_at < math.inf:
            _leave()
        self._tell()

    def _tell(self) -> None:
        _write(self._notice, json.dumps({"kind": "terminate", "at": self._ends_at}))
        self._told = self._ends_at


def _leave(*_: object) -> None:
    sys.exit(0)


def _said_end() -> float | None:
    """Return when Slurm will end the job, as `time.time` counts; ``None`` if it does not answer.

    That is 0 if it is ending it now, and infinity if it never will.
    """
    job = f"--jobs={os.environ['SLURM_JOB_ID']}"
    try:
        # The last line, as a site may let its commands print something before.
        said = "".join(_said(["squeue", "--noheader", job, "--format=%T|%e"]).splitlines()[-1:])
    except subprocess.CalledProcessError as error:
        return 0.0 if "Invalid job id" in error.stderr else None
    except OSError:
        return math.inf  # it is not on the path, and there is nobody to ask again
    state, _, end = said.partition("|")
    if not said or JobState(state).is_ending:
        return 0.0
    try:
        return datetime.fromisoformat(end).timestamp()
    except ValueError:
        return math.inf  # a job without a limit


def _ends_within(pid: int, seconds: float) -> bool:
    import psutil

    try:
        psutil.Process(pid).wait(seconds)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def _end(pid: int) -> None:
    """Kill the agent if it is still there; its ranks end with it."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        agent.kill()
        agent.wait()


def _with_gpus(ranks: tuple[RankSpec, ...]) -> list[RankSpec]:
    """Distribute the GPUs that Slurm gave to the job on this node among the ranks."""
    given = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if not given:
        return list(ranks)
    return [
        RankSpec(each.rank, {"CUDA_VISIBLE_DEVICES": given[index % len(given)]})
        for index, each in enumerate(ranks)
    ]


def _container(image: str, spec: AgentSpec) -> list[str]:
    """Return the command prefix for a container; Apptainer was formerly called Singularity.

    By default it mounts the user's home, ``/tmp`` and ``/dev/shm``, unless the site has changed
    that.
    """
    program = next(filter(shutil.which, ("apptainer", "singularity")), None)
    if program is None:
        raise SkyError("neither apptainer nor singularity is on this node: load a module of it.")
    code = os.environ["PYTHONPATH"].partition(os.pathsep)[0]
    places = dict.fromkeys([str(Path(spec.socket).parent), spec.blobs, code, spec.cwd])
    gpus = ["--nv"] if os.environ.get("CUDA_VISIBLE_DEVICES") else []
    return [program, "--silent", "exec", *gpus, "--bind", ",".join(places), image]


def _variables(spec: AgentSpec) -> dict[str, str]:
    """Return the variables of all ranks: those that the user chose, and their processors."""
    chosen = spec.env if "OMP_NUM_THREADS" not in os.environ else os.environ
    cpus = len(os.sched_getaffinity(0))
    # If Slurm does not bind processes, it only tells how many processors the job has.
    cpus = min(cpus, int(os.environ.get("SLURM_CPUS_ON_NODE", cpus)))
    threads = {} if "OMP_NUM_THREADS" in chosen else thread_variables(len(spec.ranks), cpus)
    return {**threads, **spec.env}


def _another_node(number: int, there: str | None) -> str | None:
    """Return the address of another node, from which the agent derives its own.

    That is another node of this job, or an existing one, by Slurm's name for it. Hundreds of nodes
    may ask Slurm's controller at once, and the job has perhaps waited in the queue for hours.

    Raises
    ------
    SkyError
        If it is not found after many attempts, with the reason of the last one.
    """
    words = ""
    for _attempt in range(_TRIES):
        try:
            return _find_another_node(number, there)
        except subprocess.CalledProcessError as error:
            words = "; ".join(error.stderr.splitlines()) or str(error)
        except OSError as error:
            words = str(error)
        time.sleep(_PAUSE * random.uniform(0.5, 1.5))
    raise SkyError(f"the address of another node could not be found ({words}): run this again")


def _find_another_node(number: int, there: str | None) -> str | None:
    names = _said(["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]).split()
    name = there or (names[number == 0] if len(names) > 1 else None)
    if name is None:
        return None
    fields = _said(["scontrol", "--oneliner", "show", "node", name]).split()
    address = next(each for each in fields if each.startswith("NodeAddr=")).partition("=")[2]
    return socket.gethostbyname(address)


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write(path: Path, text: str) -> None:
    """Write a line to a file atomically."""
    part = path.with_suffix(".part")
    part.write_text(f"{text}\n")
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "".join(sys.argv[2:]), os.umask(0o077))
