"""Publishes the events of a node: to the journal, and from there to all clients."""

from __future__ import annotations

import time
from typing import cast

from jupyter_sky.node.agent.client_session import ClientSessions
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.node.agent.idle import IdleTimer
from jupyter_sky.node.blobs.partial_blob import drop_unfinished
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import Forgotten, Leaving, RunBegan
from jupyter_sky.transport.protocol.messages import LatestRun


class EventPublisher:
    """Publishes events, and remembers what a client that connects later has to know.

    Parameters
    ----------
    journal
        Where events are numbered and kept.
    store
        The node's blobs, including those that ranks have written for their values.
    sessions
        The clients.
    idle
        The idle timer, which is updated when a rank may have become idle.

    Attributes
    ----------
    leaving
        The event `Leaving`, if the node is about to be taken away.
    """

    def __init__(
        self, journal: Journal, store: BlobStore, sessions: ClientSessions, idle: IdleTimer
    ) -> None:
        self.leaving: Message | None = None
        self._latest_run: Message | None = None
        self._latest_began = 0.0
        self._ended = 0  # number of the last event with which a rank ended its part of that run
        self._seen = 0  # number of the last event that a notebook has acknowledged
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
            The event as a message.
        logged
            Offset and size of its ``data`` in the rank's log, if it is there.
        is_urgent
            Whether to send it at once, and not together with events of the next moment. The end of
            a rank is not urgent while other ranks of the node continue the run.
        """
        if message["event"] in ("rank_done", "told") and message.get("values"):
            self._adopt_blobs(message["values"])
        if message["event"] == "rank_exited" and message["pid"]:
            drop_unfinished(self._store.folder, message["pid"])
        self._journal.append(message, logged)
        self._sessions.pump(is_urgent)
        if message["event"] in ("rank_done", "rank_exited"):
            if self._latest_run and message["run"] == self._latest_run["run"]:
                self._ended = self._journal.last
            if is_urgent:
                self._idle.update()

    def publish_run(self, event: RunBegan) -> None:
        """Publish that a run has begun, once per run, even if ranks join it later."""
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
        """Remember that a notebook has acknowledged the events up to a number.

        It has to do so explicitly, since the agent may not know yet that a link is broken.
        """
        self._seen = max(self._seen, min(number, self._journal.last))

    def trim_blobs(self, wanted: frozenset[str]) -> None:
        """Enforce the limits of the blob store, and publish which blobs were dropped.

        Parameters
        ----------
        wanted
            Digests of blobs to keep.
        """
        self.publish_forgotten(self._store.trim(wanted))

    def publish_forgotten(self, dropped: list[str]) -> None:
        """Publish which blobs are no longer here, if any."""
        if dropped:
            self.publish(Forgotten(dropped).message())

    def _adopt_blobs(self, values: Packed) -> None:
        references = blobs.references(values)
        for key, size in references.items():
            self._store.adopt(key, size)
        self.trim_blobs(frozenset(references))
