"""Answers the agent's questions about a rank, in the side thread."""

from __future__ import annotations

from types import FrameType

from jupyter_sky.node.rank.inspection.collectives import CollectiveRecords, prepare
from jupyter_sky.node.rank.inspection.stacks import StackFile, are_others_busy, frames_of_user
from jupyter_sky.node.rank.streams import errors_printed
from jupyter_sky.transport.protocol.rank_messages import InspectCommand, Inspected


class Inspector:
    """Reports what the rank is doing.

    Parameters
    ----------
    descriptor
        The file for stacks, which the agent has open, too; see `StackFile`.

    Attributes
    ----------
    recorded
        The collectives that torch has recorded.
    """

    def __init__(self, descriptor: int) -> None:
        self._stacks = StackFile(descriptor)
        self.recorded = CollectiveRecords()
        prepare()

    def write_names(self) -> None:
        """Tell the agent the names of new cells, since it may have to read a stack by itself."""
        self._stacks.write_names()

    def group_formed(self) -> None:
        """Forget the collectives of the previous group."""
        self.recorded.begin()

    def answer(
        self, command: InspectCommand, prompt: str, frame: FrameType | None, is_failing: bool
    ) -> Inspected:
        """Return what the rank is doing, or, in brief, whether it waits in a collective.

        Parameters
        ----------
        command
            What the agent wants to know.
        prompt, frame
            The kind of the present prompt, if any, and the frame that it is about.
        is_failing
            Whether an error has ended its part that the agent does not know of yet.
        """
        answer: Inspected = {
            "inspected": command["number"],
            "frames": [],
            "collectives": [],
            "recent": [],
            "prompt": prompt,
            "failing": is_failing and not prompt,
            "beside": False,
        }
        # Whatever goes wrong, there is an answer: without one, the agent would ask no more.
        if not command["brief"]:
            with errors_printed():
                answer["frames"], answer["beside"] = frames_of_user(frame), are_others_busy()
        with errors_printed():
            # If collectives come and go, the rank is making progress.
            has_moved = self.recorded.has_moved()
            if not (command["brief"] and has_moved):
                answer["collectives"], answer["recent"] = self.recorded.read()
        return answer
