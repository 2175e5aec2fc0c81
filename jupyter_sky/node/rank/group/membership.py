"""A rank's place in the process group: it enters groups, and is freed of collectives by a Stop.

The main thread enters a group, or runs the user's code in it. The side thread breaks the collective
in which the main thread is, and interrupts it again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from jupyter_sky.node.rank import env_vars
from jupyter_sky.node.rank.group import collective_abort, torch_groups
from jupyter_sky.node.rank.group.head_ports import HeadPorts
from jupyter_sky.node.rank.group.plugin_hooks import RankPlugins
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython.shell import RankShell
from jupyter_sky.transport.protocol.events import Formed
from jupyter_sky.transport.protocol.messages import NameGroup
from jupyter_sky.transport.protocol.rank_messages import BreakCommand, FormCommand
from jupyter_sky.transport.protocol.topology import Topology


class GroupMembership:
    """Enters and leaves process groups.

    Parameters
    ----------
    rank
        The rank's number in the group.
    shell
        Makes reports of errors.
    interrupts
        Interrupts of the main thread.
    folder
        Where the node's blobs are.
    receive_names
        Binds names that hooks of plugins need.
    on_formed
        Called when frameworks are about to form a group.

    Attributes
    ----------
    plugins
        The plugins that the rank has entered.
    head_ports
        Ports that the head keeps for those that meet there.
    topology
        The topology of the last group.
    was_broken
        Whether the group is of no use any more: a new one has to be formed.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        interrupts: Interrupts,
        folder: Path,
        receive_names: Callable[[Sequence[NameGroup]], None],
        on_formed: Callable[[], None],
    ) -> None:
        self._rank, self._shell, self._interrupts = rank, shell, interrupts
        self._receive_names, self._on_formed = receive_names, on_formed
        self.plugins = RankPlugins(folder)
        self.head_ports = HeadPorts()
        self.topology: Topology | None = None
        self.was_broken = self._left_collective = False
        # Held while the run or the formation ends: what the side thread breaks is still going on.
        self._ending = threading.Lock()
        self._run: str | None = None
        self._forming: int | None = None
        self._listened: Collection[str] = ()  # at which sockets, before the group began to form
        self._peers = 0

    def form(self, command: FormCommand, is_idle: bool) -> Formed:
        """Leave the former group, and enter another.

        Parameters
        ----------
        command
            The new group.
        is_idle
            Whether all collectives of the former one have ended here.
        """
        error = None
        topology = self.topology = command["topology"]
        self._listened = collective_abort.listening_sockets()
        self._peers = sum(len(node["ranks"]) for node in topology["nodes"]) - 1
        self._forming = generation = topology["generation"]
        try:
            # The former group is left as a whole, uninterrupted: half would spoil the next one.
            if self._left_collective or not is_idle:
                collective_abort.break_group(command["siblings"], command["addresses"])
            self.plugins.exit_app()
            collective_abort.close_broken()
            self._left_collective = False
            self._interrupts.run_interruptible(self._enter, command)
        except BaseException as problem:
            self._shell.record_traceback(problem, skip=2)
            error = self._shell.report(problem)
        with self._ending:
            self._forming = None
        return Formed(self._rank, generation, error, topology["members"])

    def _enter(self, command: FormCommand) -> None:
        os.environ.update(env_vars.variables(command["topology"], self._rank))
        self.head_ports.hand_over(command["topology"]["head_port"])
        self._receive_names(command["names"])
        self.plugins.enter_process(command["life"])
        self._on_formed()
        self.plugins.enter_app()
        self.was_broken = False

    def begin_run(self, run: str) -> None:
        """Begin a run, in which collectives may be broken from now on."""
        self._run = run

    def end_run(self, left_collective: bool) -> None:
        """End a run.

        Parameters
        ----------
        left_collective
            Whether it has left a collective that its peers may never begin: the next of theirs
            would meet it, and they would hang or mix up their values.
        """
        self._left_collective = self._left_collective or left_collective
        with self._ending:
            self._run = None
            left_collective = left_collective and torch_groups.is_formed()
            self.was_broken |= left_collective or self.plugins.has_lost_group

    def break_collective(self, command: BreakCommand) -> None:
        """Break the collective in which the main thread is; called in the side thread."""
        with self._ending:
            # A run that is over has nothing to be released from, and one in which the interrupt was
            # raised may be saving something.
            busy = self._run if self._forming is None else self._forming
            force = command["force"]
            # Tasks of former cells may keep it from beginning, even in a collective.
            is_in_way = busy == command["run"] or self._interrupts.keeps_waiting
            if not is_in_way or (self._interrupts.was_raised and not force):
                return
            store = command["store"] and (command["store"][0], command["store"][1])
            was_broken = command["in_collective"] and collective_abort.break_group(
                command["siblings"], command["addresses"], store
            )
            self.was_broken = self.was_broken or was_broken
            if self._forming is not None:
                collective_abort.release_waiting_pairs(self._listened, self._peers)
            # Again, for a run that had not begun when the first interrupt came.
            self._interrupts.repeat(force)
