"""The messages within a node: between an agent, its fork server, and its ranks.

The agent has two sockets to each rank: one for commands, which the rank's main thread carries out
one after the other, and one for what has to reach the rank while its main thread is busy. A rank
answers with events, as in `events`.
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
from jupyter_sky.transport.protocol.messages import FormRequest, ReserveRequest, RunFields
from jupyter_sky.transport.protocol.profiling import SampleCommand

# Agent and fork server


class ForkRequest(TypedDict):
    """Fork a rank; the descriptors of its sockets and pipes come with the message."""

    rank: int
    env: dict[str, str]


@final
class Imported(TypedDict):
    """The fork server has imported what it should, and can fork.

    Attributes
    ----------
    prepared
        Versions of Python and of the packages that decide whether pickles are understood.
    missing
        Modules that could not be imported, and why.
    """

    prepared: dict[str, str]
    missing: dict[str, str]


@final
class Forked(TypedDict):
    """The rank that the agent asked for first among those not answered yet has been forked."""

    forked: int
    pid: int


@final
class NotForked(TypedDict):
    """The system made no process for that rank, which was asked for first.

    Attributes
    ----------
    not_forked
        The rank.
    reason
        Why, in the system's words.
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
        Its exit status; the negative number of the signal that ended it.
    """

    exited: int
    status: int


ForkServerMessage = Imported | Forked | NotForked | Exited


# Commands: agent to the main thread of a rank


class RunCommand(RunFields):
    """Carry out a cell or a call.

    Attributes
    ----------
    values
        The names that this rank is asked for afterwards.
    asked
        The names that any rank of the run is asked for: this one helps to gather their values.
    gpus
        All GPUs of its node, as ``CUDA_VISIBLE_DEVICES`` names them; ``None`` if that says nothing.
    """

    op: Literal["run"]
    values: list[str]
    asked: list[str]
    gpus: str | None


class TellCommand(TellFields):
    """Take notice of something in the middle of a run."""

    op: Literal["tell"]


class ReserveCommand(ReserveRequest):
    """Listen for the process group; the rank answers with `Reserved`."""

    op: Literal["reserve"]


class Peers(TypedDict):
    """The other ranks, by what their connections are known by.

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
    """All that a rank printed before it displayed something has been read; it may go on."""

    op: Literal["displayed"]
    number: int


class Reserved(TypedDict):
    """The rank listens for the process group at this port."""

    reserved: int


# Agent to the side thread of a rank


class BreakCommand(Peers):
    """Release the main thread from a collective that it may be blocked in, and interrupt it.

    Attributes
    ----------
    run
        The run that the rank should be in, or the generation of the group that it joins; if it is
        in neither, there is nothing to do.
    force
        Whether to do so even if the run has been interrupted, and may be cleaning up.
    in_collective
        Whether it may be in one: beside a script it is not, and keeps its group.
    store
        Address and port at which ranks meet that form a group.
    """

    op: Literal["break"]
    run: str | int
    force: bool
    in_collective: bool
    store: tuple[str, int] | None


class CancelCommand(TypedDict):
    """Stop one of the calls that the rank was told, or will be, in a run."""

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
    """Tell what the rank is doing; it answers with `Inspected`.

    Attributes
    ----------
    number
        Tells the answer from those to other questions.
    brief
        Whether nothing is asked for but what it waits for, and not even that while it gets on.
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


class LookCommand(LookFields):
    """Tell what names stand for; the rank answers with `Looked`.

    Attributes
    ----------
    number
        Tells the answer from those to other questions.
    busy
        Whether a run is going on: then no value is looked into.
    """

    op: Literal["look"]
    number: int
    busy: bool


class Looked(TypedDict):
    """What names stand for on the rank."""

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
