"""Answers what its agent asks of a rank, in the side thread."""

from __future__ import annotations

from types import FrameType

from jupyter_sky.node.rank.inspection.collectives import Recorded, prepare
from jupyter_sky.node.rank.inspection.stacks import StackFile, frames_of_user
from jupyter_sky.transport.protocol.rank_messages import InspectCommand, Inspected


class Inspector:
    """Tells what the rank is doing.

    Parameters
    ----------
    descriptor
        The file for stacks, which the agent has open too; see `StackFile`.

    Attributes
    ----------
    recorded
        The collectives that torch has recorded.
    """

    def __init__(self, descriptor: int) -> None:
        self._stacks = StackFile(descriptor)
        self.recorded = Recorded()
        prepare()

    def write_names(self) -> None:
        """Tell the agent what new cells are called: it may have to read a stack by itself."""
        self._stacks.write_names()

    def group_formed(self) -> None:
        """Forget the collectives of the group before."""
        self.recorded.begin()

    def answer(
        self, command: InspectCommand, prompt: str, frame: FrameType | None, is_failing: bool
    ) -> Inspected:
        """Return what the rank is doing; briefly, it is whether it waits in a collective.

        Parameters
        ----------
        command
            What the agent wants to know.
        prompt, frame
            What the user is asked for there, if anything, and the frame that it is about.
        is_failing
            Whether an error has ended its part, which the agent does not know yet.
        """
        answer: Inspected = {
            "inspected": command["number"],
            "frames": [],
            "collectives": [],
            "recent": [],
            "prompt": prompt,
            "failing": is_failing and not prompt,
        }
        # Where collectives come and go, there is nothing to look for.
        has_moved = self.recorded.has_moved()
        if not (command["brief"] and has_moved):
            answer["collectives"], answer["recent"] = self.recorded.read()
        if not command["brief"]:
            answer["frames"] = frames_of_user(frame)
        return answer
