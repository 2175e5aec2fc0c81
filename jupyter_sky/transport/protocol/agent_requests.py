"""What a kernel asks of an agent, but for runs and formations, which are in `messages`.

Each class is a request by the name that its text begins with; `messages` says what all have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from jupyter_sky.transport.protocol.topology import AgentAddress

# Ranks


class AbandonRequest(TypedDict):
    """``abandon``: take ranks out of a formation that some of them will not complete.

    The answer comes when no rank is in it any more.

    Attributes
    ----------
    patience
        Seconds that ranks get to complete it after all.
    """

    patience: float


class InterruptRequest(TypedDict):
    """``interrupt``: stop a run, at the latest after ``deadline`` seconds by killing ranks."""

    run: str
    deadline: float


class RanksRequest(TypedDict):
    """``kill``: replace the processes of ranks; ``remove_ranks``: end ranks for good."""

    ranks: list[int]


class RankEnvironment(TypedDict):
    """A rank to start, and variables of its environment, as `agent_spec.RankSpec` has them."""

    rank: int
    env: dict[str, str]


class AddRanksRequest(TypedDict):
    """``add_ranks``: start further ranks on this node."""

    ranks: list[RankEnvironment]


LoggedPiece = tuple[int, float, str]
"""Where a piece of a log begins, when it was written, and to which stream."""

LoggedRun = tuple[int, float, str, str]
"""Where a run begins in a log, when it began, its id, and its title."""


class LogRequest(TypedDict):
    """``log``: read a part of a rank's log, at most ``limit`` bytes; answered by `LogAnswer`.

    Attributes
    ----------
    tail
        Number of last lines to read; with ``None`` it is read from ``offset`` on.
    """

    rank: int
    tail: int | None
    offset: int
    limit: int


class LogAnswer(TypedDict):
    """A part of a rank's log.

    Attributes
    ----------
    data, start
        The bytes, and where they stand in the log.
    size
        The bytes of the log in all.
    pieces, runs
        What stands there; the first of each may begin before.
    """

    data: bytes
    start: int
    size: int
    pieces: list[LoggedPiece]
    runs: list[LoggedRun]


# Blobs


class FetchRequest(TypedDict):
    """``fetch``: send a blob of ``size`` bytes in pieces, from ``offset`` on."""

    id: int
    blob: str
    size: int
    offset: int


class ArrivedRequest(TypedDict):
    """``arrived``: tell in ``size`` how many bytes of a blob have arrived, from the first on."""

    blob: str


class PassOnRequest(TypedDict):
    """``pass_on``: give a blob to other agents, also while it is still arriving.

    The answer has ``failed``: the node of each agent that did not get it, and why.
    """

    blob: str
    size: int
    to: list[AgentAddress]


# Other agents


class ReachRequest(TypedDict):
    """``reach``: connect to other agents; the answer has ``failed``, as for `PassOnRequest`."""

    peers: list[AgentAddress]


class EndPeersRequest(TypedDict):
    """``end_peers``: tell other agents that they were ended; the answer has ``failed``, as above.

    With no ``peers`` it asks for nothing but a sign of life.
    """

    peers: list[AgentAddress]


class ListenRequest(TypedDict):
    """``listen_on_test_port``: listen for ``callers`` connections; the answer has the ``port``."""

    addr: str
    callers: int


class ConnectRequest(TypedDict):
    """``connect_to_test_ports``: connect to other nodes; the answer has ``failed``, as above.

    Attributes
    ----------
    listeners
        Node, address and port of each.
    """

    listeners: list[tuple[int, str, int]]


class AddPeersRequest(TypedDict):
    """``add_peers``: trust agents that join the cluster.

    The answer has ``addr``, ``interface`` and ``port`` where the agent listens to others from now
    on, and the ``fingerprint`` of what it shows them, if it was alone so far.

    Attributes
    ----------
    authority
        The certificate of who has signed for them, as PEM.
    credentials
        For an agent that was alone so far: what it shows to other agents.
    peer
        The address of one of them.
    peers
        Their fingerprints.
    """

    authority: str
    credentials: Mapping[str, Any] | None
    peer: str
    peers: list[str]
