"""Answers what its agent asks of a rank, in the side thread."""

from __future__ import annotations

from collections.abc import Callable
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
    at_prompt
        Returns what the user is asked for there, if anything, and the frame that it is about.
    """

    def __init__(self, descriptor: int) -> None:
        self._stacks = StackFile(descriptor)
        self.recorded = Recorded()
        self.at_prompt: Callable[[], tuple[str, FrameType | None]] = lambda: ("", None)
        prepare()

    def write_names(self) -> None:
        """Tell the agent what new cells are called: it may have to read a stack by itself."""
        self._stacks.write_names()

    def group_formed(self) -> None:
        """Forget the collectives of the group before."""
        self.recorded.begin()

    def answer(self, command: InspectCommand) -> Inspected:
        """Return what the rank is doing; briefly, it is whether it waits in a collective."""
        answer: Inspected = {
            "inspected": command["number"],
            "frames": [],
            "collectives": [],
            "recent": [],
            "prompt": "",
        }
        answer["prompt"], frame = self.at_prompt()
        # Where collectives come and go, there is nothing to look for.
        has_moved = self.recorded.has_moved()
        if not (command["brief"] and has_moved):
            answer["collectives"], answer["recent"] = self.recorded.read()
        if not command["brief"]:
            answer["frames"] = frames_of_user(frame)
        return answer
