"""The requests that clients can make to an agent, in one table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from jupyter_sky.node.agent.events.event_publisher import EventPublisher
from jupyter_sky.node.agent.idle import IdleTimer
from jupyter_sky.node.agent.usage.metrics import UsageMeter
from jupyter_sky.node.blobs.relay import BlobRelay
from jupyter_sky.node.blobs.rooms import BlobRooms
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.files import reader
from jupyter_sky.node.network import interfaces, port_check
from jupyter_sky.node.network.peers import PeerAgents
from jupyter_sky.node.supervisor.supervisor import Supervisor
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.blobs.sent_folders import blobs_of, portions_of
from jupyter_sky.transport.certificates import fingerprint
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import (
    CAUGHT_UP,
    AddedRequest,
    AddRanksRequest,
    ArrivedRequest,
    FindAnswer,
    FindRequest,
    Handlers,
    InterruptRequest,
    PassOnRequest,
    RanksRequest,
    RenewVariablesRequest,
    VariablesRequest,
)
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.debugging import AnswerRequest, HoldRequest
from jupyter_sky.transport.protocol.events import Added, Ending, RunBegan
from jupyter_sky.transport.protocol.inspection import (
    InspectAnswer,
    InspectRequest,
    LookAnswer,
    LookRequest,
)
from jupyter_sky.transport.protocol.messages import NameGroup, RunRequest, whole_request
from jupyter_sky.transport.protocol.profiling import ProfileAnswer, TakeProfileRequest
from jupyter_sky.transport.protocol.topology import (
    AbandonRequest,
    AddPeersRequest,
    ConnectRequest,
    EndPeersRequest,
    FormRequest,
    ListenRequest,
    ReachRequest,
    ReserveRequest,
)
from jupyter_sky.transport.tasks import aside, shielded

_WORK = frozenset({"arrived", "installing", "attend"})
"""What is asked again and again as long as something goes on for which no run is needed."""

_CLOCK_REALTIME_COARSE = 5  # Linux's number; Python has no name for it


class RequestHandlers:
    """Carries out the requests of clients.

    Parameters
    ----------
    spec
        The agent's specification.
    supervisor
        The ranks.
    store, relay
        The blobs, and the relay of blobs to other agents.
    peers
        The other agents.
    events
        Publishes events.
    idle
        Ends the node when nobody needs it.
    metrics
        Measures the ranks.
    others
        The handlers of further requests, by name: for logs, packages, shells, ports and volumes.
    end
        Ends the agent.
    """

    def __init__(
        self,
        *,
        spec: AgentSpec,
        supervisor: Supervisor,
        store: BlobStore,
        relay: BlobRelay,
        peers: PeerAgents,
        events: EventPublisher,
        idle: IdleTimer,
        metrics: UsageMeter,
        others: Handlers,
        end: Callable[[], asyncio.Task[None]],
    ) -> None:
        self._spec = spec
        self._supervisor = supervisor
        self._store = store
        self.rooms = BlobRooms(store, lambda: supervisor.is_busy, events.publish_forgotten)
        self._relay = relay
        self._peers = peers
        self._events = events
        self._idle = idle
        self._metrics = metrics
        self._end = end
        self._own_address: Message = {}
        self._began = _file_time()
        self._passing: set[str] = set()
        self._handlers: Handlers = {
            # runs and the process group
            "run": self._on_run,
            "tell": self._on_tell,
            "answer": self._on_answer,
            "hold": self._on_hold,
            "interrupt": self._on_interrupt,
            "reserve": self._on_reserve,
            "form": self._on_form,
            "abandon": self._on_abandon,
            # ranks
            "kill": self._on_kill,
            "add_ranks": self._on_add_ranks,
            "remove_ranks": self._on_remove_ranks,
            "variables": self._on_variables,
            "renew_variables": self._on_renew_variables,
            "added": self._on_added,
            "inspect": self._on_inspect,
            "profile": supervisor.profiles.begin,
            "take_profile": self._on_take_profile,
            "recorded": supervisor.records.part,
            "look": self._on_look,
            # blobs
            "arrived": self._on_arrived,
            "make_room": self.rooms.make,
            "fill_room": self.rooms.complete,
            "pass_on": self._on_pass_on,
            # files
            "find": self._on_find,
            "written": self._on_written,
            # other agents
            "reach": self._on_reach,
            "listen_on_test_port": self._on_listen_on_test_port,
            "connect_to_test_ports": self._on_connect_to_test_ports,
            "authority": self._on_authority,
            "add_peers": self._on_add_peers,
            "end_peers": self._on_end_peers,
            # the agent itself
            "catch_up": lambda request: {CAUGHT_UP: True},  # goes behind all events so far
            "attend": lambda request: {},  # it must not end: see `handle`
            "end": self._on_end,
            **others,
        }

    def handle(self, message: Message) -> Message | Awaitable[Message]:
        """Carry out a request; return the answer, or an awaitable of it."""
        handler = self._handlers.get(message["op"])
        if handler is None:
            return {"error": f"this agent does not know {message['op']!r}"}
        if message["op"] in _WORK:
            self._idle.on_work()
        answer: Message | Awaitable[Message] = handler(message)
        return answer

    # Runs and the process group

    def _on_run(self, message: Message) -> Message:
        request: RunRequest = whole_request(message)
        wanted = _blobs_in(request)
        if missing := [key for key in wanted if key not in self._store]:
            return {"missing": missing}
        self._events.publish_forgotten(self._store.drop(self._passing - wanted))
        self._passing = portions_of(request["script"]["folders"]) if request["script"] else set()
        self._store.touch(wanted)
        self._store.note_used(_blobs_in_values(request["call"], request["names"]))
        self._events.trim_blobs(wanted)
        self._began = _file_time()
        refused = self._supervisor.run(request)
        self._idle.update()
        if refused:
            return refused
        self._events.publish_run(
            RunBegan(
                run=request["run"],
                ranks=request["everyone"],
                title=request["title"],
                show=request["show"],
                asked=request["values"],
                attempts_left=request["attempts_left"],
            )
        )
        return {}

    def _on_tell(self, request: TellRequest) -> Message:
        wanted = _blobs_in_values(request["packed"], request["names"])
        if missing := [key for key in wanted if key not in self._store]:
            return {"missing": missing}
        if wanted:
            self._store.touch(wanted)
            self._events.trim_blobs(wanted)
        self._supervisor.tell(request)
        return {}

    def _on_answer(self, request: AnswerRequest) -> Message:
        self._supervisor.prompting.answer(request)
        return {}

    def _on_hold(self, request: HoldRequest) -> Message:
        self._supervisor.prompting.hold(request)
        return {}

    def _on_interrupt(self, request: InterruptRequest) -> Message:
        self._supervisor.stopper.stop(request["run"], request["deadline"])
        return {}

    async def _on_reserve(self, request: ReserveRequest) -> Message:
        return await self._supervisor.reservations.reserve(request)

    def _on_form(self, request: FormRequest) -> Message:
        ours = self._supervisor.ranks.keys()
        nodes = request["topology"]["nodes"]
        self._peers.set_others(node for node in nodes if ours.isdisjoint(node["ranks"]))
        self._supervisor.form(request)
        self._idle.start_timeout()
        return {}

    async def _on_abandon(self, request: AbandonRequest) -> Message:
        await self._supervisor.stopper.abandon_formation(request["patience"])
        return {}

    # Ranks

    def _on_kill(self, request: RanksRequest) -> Message:
        self._supervisor.kill(request["ranks"], request.get("patience", 0.0))
        return {}

    def _on_add_ranks(self, request: AddRanksRequest) -> Message:
        specs = [RankSpec(each["rank"], each["env"]) for each in request["ranks"]]
        self._metrics.add(specs)
        self._supervisor.add(specs)
        return {}

    async def _on_remove_ranks(self, request: RanksRequest) -> Message:
        await self._supervisor.remove(request["ranks"])
        return {}

    def _on_variables(self, request: VariablesRequest) -> Message:
        known = {**self._spec.env, **self._supervisor.renewed_variables}
        return {"variables": {name: known[name] for name in request["names"] if name in known}}

    def _on_renew_variables(self, request: RenewVariablesRequest) -> Message:
        self._supervisor.renewed_variables.update(request["variables"])
        return {}

    def _on_added(self, request: AddedRequest) -> Message:
        self._events.publish(Added(request["by"]).message())
        return {}

    async def _on_inspect(self, request: InspectRequest) -> InspectAnswer:
        return {"seen": await self._supervisor.inspection.inspect(request["after"])}

    async def _on_take_profile(self, request: TakeProfileRequest) -> ProfileAnswer:
        return await self._supervisor.profiles.take(request["number"])

    async def _on_look(self, request: LookRequest) -> LookAnswer:
        return {"looked": await self._supervisor.looking.look(request)}

    # Blobs

    def _on_arrived(self, request: ArrivedRequest) -> Message:
        return {"size": self._store.arrived(request["blob"])}

    async def _on_pass_on(self, request: PassOnRequest) -> Message:
        key, size = request["blob"], request["size"]
        return {"failed": await self._relay.pass_on(key, size, request["to"])}

    # Files

    async def _on_find(self, request: FindRequest) -> FindAnswer:
        asked = Path(self._spec.cwd), request["patterns"], request["most"]
        return await aside(reader.find, *asked)

    async def _on_written(self, request: Message) -> Message:
        place = Path(self._spec.cwd), self._began
        return {"names": await aside(reader.written, *place)}

    # Other agents

    async def _on_reach(self, request: ReachRequest) -> Message:
        return {"failed": await self._peers.reach(request["peers"])}

    def _on_listen_on_test_port(self, request: ListenRequest) -> Message:
        return {"port": port_check.listen_on_test_port(request["addr"], request["callers"])}

    async def _on_connect_to_test_ports(self, request: ConnectRequest) -> Message:
        listeners = {node: (addr, port) for node, addr, port in request["listeners"]}
        return {"failed": await asyncio.to_thread(port_check.connect_to_test_ports, listeners)}

    def _on_authority(self, request: Message) -> Message:
        return {"authority": self._peers.authority}

    async def _on_add_peers(self, request: AddPeersRequest) -> Message:
        if self._peers.authority:
            self._peers.trust(request["authority"], request["peers"])
            return self._own_address
        if request["credentials"] is None:
            raise ValueError("an agent that was alone needs credentials")
        # An agent without peers had no way to choose an address before.
        addr, interface = interfaces.local_address(request["peer"], self._spec.interface)
        self._peers.set_credentials(request["credentials"])
        port = await self._peers.listen(addr)
        shown = fingerprint(request["credentials"]["certificate"])
        self._own_address = {
            "addr": addr,
            "interface": interface,
            "port": port,
            "fingerprint": shown,
        }
        return self._own_address

    async def _on_end_peers(self, request: EndPeersRequest) -> Message:
        if not request["peers"]:
            return {"failed": {}}
        return {"failed": await self._peers.tell(request["peers"], {"op": "ended"})}

    # The agent itself

    async def _on_end(self, request: Message) -> Message:
        # Otherwise other clients would only see that their runs were stopped, or the node is gone.
        self._events.publish(Ending("", bool(request.get("whole"))).message())
        await shielded(self._end())
        return {}


def _file_time() -> int:
    """Return the time in nanoseconds, by the clock of file modification times."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def _blobs_in(request: RunRequest) -> frozenset[str]:
    """Return the digests of the blobs that a run needs."""
    keys = set(_blobs_in_values(request["call"], request["names"]))
    for folder in request["script"]["folders"] if request["script"] else ():
        keys.update(blobs_of(folder))
    return frozenset(keys)


def _blobs_in_values(packed: Packed | None, names: Sequence[NameGroup]) -> frozenset[str]:
    values = [*(group["packed"] for group in names), *([packed] if packed else ())]
    return frozenset(key for value in values for key in blobs.references(value))
