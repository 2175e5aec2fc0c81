"""The messages within a node: between an agent, its fork server, and its ranks.

The agent has two sockets to each rank: one for commands, which the rank's main thread carries out
one after the other, and one to its side thread, for what has to reach the rank while its main
thread is busy. A rank answers with the events of `events`.
"""

from __future__ import annotations

from typing import Literal, TypedDict, final

from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.debugging import AnswerCommand, HoldCommand
from jupyter_sky.transport.protocol.inspection import (
    BegunCollective,
    LookedRank,
    LookFields,
    SeenCollective,
    SeenFrame,
)
from jupyter_sky.transport.protocol.messages import RunFields
from jupyter_sky.transport.protocol.profiling import SampleCommand
from jupyter_sky.transport.protocol.topology import FormRequest, ReserveRequest

# Agent and fork server


class ForkRequest(TypedDict):
    """Fork a rank; the file descriptors of its sockets and pipes come with the message."""

    rank: int
    env: dict[str, str]


@final
class Imported(TypedDict):
    """The fork server has imported its modules, and can fork.

    Attributes
    ----------
    prepared
        Versions of Python and of the packages that must match for pickles to be readable.
    missing
        Modules that could not be imported, and why.
    """

    prepared: dict[str, str]
    missing: dict[str, str]


@final
class Forked(TypedDict):
    """The fork server has answered the oldest open request: the rank was forked."""

    forked: int
    pid: int


@final
class NotForked(TypedDict):
    """The system could not create a process for the oldest open request.

    Attributes
    ----------
    not_forked
        The rank.
    reason
        The system's error message.
    """

    not_forked: int
    reason: str


@final
class Exited(TypedDict):
    """The process of a rank has ended.

    Attributes
    ----------
    exited
        Its process id.
    status
        Its exit status, or the negative number of the signal that ended it.
    """

    exited: int
    status: int


ForkServerMessage = Imported | Forked | NotForked | Exited


# Commands: agent to the main thread of a rank


class RunCommand(RunFields):
    """Carry out a cell or a call.

    Attributes
    ----------
    wanted
        The names whose values this rank sends afterwards.
    asked
        The names whose values any rank of the run sends: this rank helps to gather them.
    of_one
        Those of them that only one rank sends.
    gpus
        All GPUs of its node, as in ``CUDA_VISIBLE_DEVICES``; ``None`` if that is not set.
    """

    op: Literal["run"]
    wanted: list[str]
    asked: list[str]
    of_one: list[str]
    gpus: str | None


class TellCommand(TellFields):
    """Receive a message in the middle of a run."""

    op: Literal["tell"]


class ReserveCommand(ReserveRequest):
    """Listen for the process group; answered with `Reserved` or `NotReserved` and this number."""

    op: Literal["reserve"]
    number: int


class Peers(TypedDict):
    """What identifies connections to the other ranks.

    Attributes
    ----------
    siblings
        Process ids of the other ranks on this node.
    addresses
        Addresses of the other nodes.
    """

    siblings: list[int]
    addresses: list[str]


class FormCommand(FormRequest, Peers):
    """Enter a process group."""

    op: Literal["form"]


class EndCommand(TypedDict):
    """Leave the process group, and end."""

    op: Literal["end"]


RankCommand = RunCommand | TellCommand | ReserveCommand | FormCommand | EndCommand


class Displayed(TypedDict):
    """The output that a rank printed before a display has been read; the rank may continue."""

    op: Literal["displayed"]
    number: int


class Reserved(TypedDict):
    """The rank listens for the process group at a port; ``reserved`` is the command's number."""

    reserved: int
    port: int


class NotReserved(TypedDict):
    """The rank cannot listen, for a reason that the user is told; ``reserved`` as above."""

    reserved: int
    error: str


# Agent to the side thread of a rank


class BreakCommand(Peers):
    """Release the main thread from a collective that it may be blocked in, and interrupt it.

    Attributes
    ----------
    run
        The run that the rank should be in, or the generation of the group that it is joining; if it
        is in neither, nothing is done.
    force
        Whether to interrupt even if the run was interrupted already, and may be cleaning up.
    in_collective
        Whether it may be in a collective: while a script runs it is not, and keeps its group.
    store
        Address and port of the store at which ranks meet to form a group.
    """

    op: Literal["break"]
    run: str | int
    force: bool
    in_collective: bool
    store: tuple[str, int] | None


class CancelCommand(TypedDict):
    """Stop a call that was, or will be, sent to the rank in a run."""

    op: Literal["cancel"]
    run: str
    number: int


class LeavingCommand(TypedDict):
    """A node is about to be taken away; the fields are those of the event `Leaving`."""

    op: Literal["leaving"]
    kind: str
    at: float | None
    ranks: list[int]


class InspectCommand(TypedDict):
    """Ask what the rank is doing; it answers with `Inspected`.

    Attributes
    ----------
    number
        Tells the answer from those to other questions.
    brief
        Whether to report only what it waits for, and nothing while it makes progress.
    """

    op: Literal["inspect"]
    number: int
    brief: bool


class Inspected(TypedDict):
    """What the rank is doing: the fields are those of `inspection.SeenRank`."""

    inspected: int
    frames: list[SeenFrame]
    collectives: list[SeenCollective]
    recent: list[BegunCollective]
    prompt: str
    failing: bool
    beside: bool


class LookCommand(LookFields):
    """Ask for the values of names; the rank answers with `Looked`.

    Attributes
    ----------
    number
        Tells the answer from those to other questions.
    busy
        Whether a run is in progress: values are not examined then.
    """

    op: Literal["look"]
    number: int
    busy: bool


class Looked(TypedDict):
    """The values of names on the rank."""

    looked: int
    seen: LookedRank


SideCommand = (
    BreakCommand
    | CancelCommand
    | LeavingCommand
    | InspectCommand
    | SampleCommand
    | LookCommand
    | AnswerCommand
    | HoldCommand
)
