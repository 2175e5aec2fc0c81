"""What happens on a node, on its way to the clients: through the journal, to each that follows."""

from __future__ import annotations

import time
from typing import cast

from jupyter_sky.node.agent.client_session import ClientSessions
from jupyter_sky.node.agent.idle import IdleTimer
from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import Forgotten, Leaving, RunBegan
from jupyter_sky.transport.protocol.messages import LatestRun, Packed


class EventPublisher:
    """Publishes events, and remembers of them what a client that connects later has to know.

    Parameters
    ----------
    journal
        Where events are numbered and kept.
    store
        The node's blobs; those that a rank has written for its values are counted there.
    sessions
        The clients.
    idle
        Is told when a rank may have come to rest.

    Attributes
    ----------
    leaving
        That the node is about to be taken away, if it is.
    """

    def __init__(
        self, journal: Journal, store: BlobStore, sessions: ClientSessions, idle: IdleTimer
    ) -> None:
        self.leaving: Message | None = None
        self._latest_run: Message | None = None
        self._latest_began = 0.0
        self._ended = 0  # the number of the last event with which a rank has ended its part of it
        self._seen = 0  # that of the last event that a notebook has
        self._journal = journal
        self._store = store
        self._sessions = sessions
        self._idle = idle

    def publish(
        self,
        message: Message,
        logged: tuple[int, int] | None = None,
        is_urgent: bool = True,
    ) -> None:
        """Append an event to the journal, and send it to the clients.

        Parameters
        ----------
        message
            The event as it goes over the wire.
        logged
            Offset and size of its ``data`` in the rank's log, if the log has it.
        is_urgent
            Whether it leaves at once, and not with what comes within a moment: a rank that is done
            while others of the node go on with the run is not.
        """
        if message["event"] in ("rank_done", "told") and message.get("values"):
            self._adopt_blobs(message["values"])
        if message["event"] == "rank_exited" and message["pid"]:
            self._store.drop_unfinished(message["pid"])
        self._journal.append(message, logged)
        self._sessions.pump(is_urgent)
        if message["event"] in ("rank_done", "rank_exited"):
            if self._latest_run and message["run"] == self._latest_run["run"]:
                self._ended = self._journal.last
            if is_urgent:
                self._idle.update()

    def publish_run(self, event: RunBegan) -> None:
        """Publish that a run has begun; a rank that takes part again begins no other."""
        if self._latest_run and self._latest_run["run"] == event.run:
            return
        message = event.message()
        self.publish(message, is_urgent=False)
        self._latest_run = {"n": self._journal.last, **message}
        self._latest_began = time.monotonic()

    def publish_leaving(self, event: Leaving) -> None:
        """Publish that the node is about to be taken away."""
        self.leaving = event.message()
        self.publish(self.leaving)

    @property
    def latest_run(self) -> LatestRun | None:
        """The last run that began here."""
        if self._latest_run is None:
            return None
        seconds = time.monotonic() - self._latest_began
        unseen = self._ended > self._seen
        return cast(LatestRun, {**self._latest_run, "unseen": unseen, "seconds": seconds})

    def on_seen(self, number: int) -> None:
        """Remember that a notebook has the events up to a number.

        It has to say so: of a link that is broken the agent may not know yet.
        """
        self._seen = max(self._seen, min(number, self._journal.last))

    def trim_blobs(self, wanted: frozenset[str]) -> None:
        """Keep the limits of the blob store, and publish which blobs that has cost.

        Parameters
        ----------
        wanted
            Digests of blobs that have to stay.
        """
        self.publish_forgotten(self._store.trim(wanted))

    def publish_forgotten(self, dropped: list[str]) -> None:
        """Publish which blobs are here no longer, if there are any."""
        if dropped:
            self.publish(Forgotten(dropped).message())

    def _adopt_blobs(self, values: Packed) -> None:
        references = list(blobs.references(values))
        for key, size in references:
            self._store.adopt(key, size)
        self.trim_blobs(frozenset(key for key, _ in references))
