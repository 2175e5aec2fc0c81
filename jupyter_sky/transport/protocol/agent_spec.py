"""The specification of an agent, and the line that the agent prints when it has started.

A provider writes the specification as ``spec.json`` into the agent's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypedDict

LIMIT_FILE = "/run/jupyter-sky-off"
"""When a machine powers off because its money is spent: in seconds since it has booted.

That is not the time of day: a clock may be set, also by a year.
"""

NOTICE_FILE = "notice.json"
"""Where whoever looks after an agent writes `jupyter_sky.node.agent.notices.Notice` for it."""

FIRST_GRACE = 120.0
"""Seconds that a new node waits for its first client, unless others may take longer to start."""

SHELL_OF = "JUPYTER_SKY_SHELL_OF"
"""The variable that tells whose shells a process descends from: the folder of an agent."""


@dataclass(frozen=True)
class RankSpec:
    """A rank to start: its number, and its environment variables."""

    rank: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """How a provider wants an agent to be.

    Attributes
    ----------
    cluster, id
        Name and identity of the cluster.
    socket
        Where the agent listens to clients.
    blobs
        Folder of blobs, in shared memory.
    ranks
        The ranks of this node.
    blob_limit
        Bytes of blobs to keep; ``None`` for a share of the shared memory.
    peer
        An address of another node, from which the agent derives its own; ``None`` if alone.
    interface
        The network interface to use, if not the one that leads to ``peer``.
    credentials
        `jupyter_sky.providers.mtls.Credentials` for other agents; ``None`` if alone.
    grace
        Seconds without a notebook and without a run after which the agent ends.
    first_grace
        The same before the first notebook has come, which waits until all nodes are there.
    idle_timeout
        Seconds without a run, or with one that only waits for its notebook, after which it ends,
        even if clients are connected; ``None`` for never.
    unattended
        Seconds without a notebook after which it ends even during a run; ``None`` for never.
    preload
        Modules that are imported before ranks are forked.
    soon
        Modules that are imported then, too, if they can be, and without which a template will do.
    cwd
        The folder that ranks work in.
    sys_path, python_path
        Folders that ranks import from first, and their ``PYTHONPATH``.
    env
        Environment variables of all ranks.
    keeps
        Folders to mark as used from time to time, so that they are not removed as unused.
    umask
        The umask of ranks; ``None`` for the agent's own.
    templates
        A private folder in which a process with everything imported is left behind for the next
        agent; ``None`` for none.
    notices
        Where to look for notices that the machine will be taken away: ``"metadata"`` for the
        metadata of the instance, ``"file"`` for `NOTICE_FILE` in the agent's folder, ``"limit"``
        for `LIMIT_FILE`.
    """

    cluster: str
    id: str
    socket: str
    blobs: str
    ranks: tuple[RankSpec, ...]
    blob_limit: int | None = None
    peer: str | None = None
    interface: str | None = None
    credentials: Mapping[str, Any] | None = None
    grace: float
    first_grace: float = FIRST_GRACE
    idle_timeout: float | None = None
    unattended: float | None = None
    preload: tuple[str, ...] = ()
    soon: tuple[str, ...] = ()
    cwd: str
    sys_path: tuple[str, ...] = ()
    python_path: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    umask: int | None = None
    templates: str | None = None
    notices: tuple[Literal["metadata", "file", "limit"], ...] = ()

    def to_json(self) -> str:
        """Return the content of ``spec.json``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AgentSpec:
        """Return the specification that `to_json` wrote, even that of a newer version."""
        said: dict[str, Any] = json.loads(text)
        known = {each.name: said[each.name] for each in fields(cls) if each.name in said}
        for name in ("preload", "soon", "sys_path", "keeps", "notices"):
            known[name] = tuple(known.get(name, ()))
        known["ranks"] = tuple(RankSpec(each["rank"], each["env"]) for each in known["ranks"])
        return cls(**known)


class AgentStarted(TypedDict):
    """What ``python -m jupyter_sky.node`` prints, as one line of JSON.

    Attributes
    ----------
    pid
        Process id of the agent.
    addr, interface
        The address at which other nodes reach the node, and its network interface.
    port
        Where the agent listens to other agents; 0 if it is alone.
    fingerprint
        Of the certificate that it shows to them; empty if it is alone.
    """

    pid: int
    addr: str
    interface: str
    port: int
    fingerprint: str
