"""Runs scripts on a node of a job, as steps of the job, for the code that prepares hosts."""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable

from jupyter_sky.providers.slurm.homes.waiting import of_a_step
from jupyter_sky.providers.slurm.login import FIND, NODES_EACH, LoginNode, own_environment
from jupyter_sky.providers.slurm.script import step_beside
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import ANSWER_WITHIN

_END = "~ the end of this script ~"


class StepShell:
    """Runs shell scripts on a node of a job that waits to be prepared.

    Attributes
    ----------
    target
        Slurm's name of the node.

    Parameters
    ----------
    at
        The login node.
    job
        The job.
    host, address
        Slurm's name of the node, and its address for other nodes.
    start
        The name of the start that it waits in.
    number
        Which of the nodes it is.
    """

    def __init__(
        self, at: LoginNode, job: str, host: str, address: str, start: str, number: int
    ) -> None:
        self.target = host
        self._at = at
        self._step = step_beside(job, host)
        self._before = of_a_step(start, address)
        self._part = number // NODES_EACH
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._is_aborted = False

    def connect(self) -> None:
        """Do nothing: the node is reachable for as long as the job has it."""

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
        ends_with_us: bool = False,
    ) -> str:
        """Run a shell script and return its output.

        Raises
        ------
        CommandError
            With its last lines, if it fails.
        HostError
            If the login node cannot be reached, or everything should end.
        """
        script = f"{self._before}\n{script}"
        if self._at.host:
            return self._run_there(script, data, within, sent, ends_with_us)
        # Without data, it is not on a command line, where others could read it.
        shell = ["sh", "-s"] if data is None else ["sh", "-c", script]
        with self._lock:
            if self._is_aborted:
                raise HostError("it was stopped")
            process = subprocess.Popen(
                [*self._step, *shell],
                env=own_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.append(process)
        try:
            printed, said = process.communicate(script.encode() if data is None else data, within)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            raise CommandError.of_silence(within) from None
        finally:
            self._running.remove(process)
        sent(len(data or b""))
        if process.returncode:
            lines = (printed + said).decode(errors="replace").strip().splitlines()
            raise CommandError.of_end(process.returncode, lines)
        return printed.decode(errors="replace")

    def _run_there(
        self,
        script: str,
        data: bytes | None,
        within: float,
        sent: Callable[[int], None],
        ends_with_us: bool,
    ) -> str:
        way = pool.named(self._at.host, part=self._part)
        find, step = FIND.format("srun"), shlex.join(self._step)
        if data is not None:
            return way.run(f"{find}\nexec {step} sh -c {shlex.quote(script)}", data, within, sent)
        lines = f"{find}\nexec {step} sh -s <<'{_END}'\n{script}\n{_END}\n"
        return way.run(lines, None, within, ends_with_us=ends_with_us)

    def abort(self) -> None:
        """End running scripts, and refuse others; a step on the node ends with its command."""
        with self._lock:
            self._is_aborted = True
            for process in self._running:
                process.terminate()
        if self._at.host:
            pool.named(self._at.host, part=self._part).abort()
