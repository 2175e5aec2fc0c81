"""All exceptions, and those that every room may raise.

What a user sees is one sentence that says what to do, never a traceback of our own code. The tree
of all exceptions, each with its file::

    Exception
        SkyError             errors.py: one sentence for the user
            UsageError       errors.py: what was typed cannot be done
                InvalidCell  notebook/errors.py: the cell does not compile
                Declined     errors.py: the user was asked, and said no
                NotOffered   providers/aws/market/selection.py: what fits is on no market
            ScriptFailed     errors.py: a script ended with an exit status that is not 0
            DebuggerQuit     errors.py: the user left the debugger of a cell with `q`
            ClusterLost      errors.py: the cluster, or a part of it, is gone
            NoConnection     errors.py: a node cannot be reached now, and may be there
            GroupBroken      cluster/errors.py: a rank was lost while the group was formed
            TimedOut         cluster/errors.py: the run took longer than `--timeout`
            RegistryError    cluster/inventory/registry.py: the registry cannot be used
            ClusterStopped   cluster/inventory/stops.py: its machines are off, and can be started
            VersionMismatch  cluster/version_check.py: the node's Python or jupyter_sky differs
            HostError        providers/ssh/connection/errors.py: a host cannot be used
                CommandError providers/ssh/connection/errors.py: a command on it failed
            HostKeyError     providers/ssh/connection/errors.py: its key is not the known one
            LoginError       providers/ssh/connection/errors.py: it does not let us in
            AWSError         providers/aws/clients.py: AWS refused a request
            SlurmError       providers/slurm/login.py: a command of Slurm's failed
            Stopped          providers/aws/retries.py: the user stopped a launch
            NoCapacity       providers/aws/ec2/launch.py: AWS has too little of what fits
            NoAnswer         server/kernel_client.py: a kernel did not answer
        RemoteError          cluster/errors.py: raised on a rank
            RankLost         cluster/errors.py: a rank's process ended in a run
        ProtocolError        transport/frames.py: bytes that are no message
        HelpRequested        notebook/options/parser.py: the line asks for help
        ObjectGone           serialization/object_tokens.py: a rank has dropped an object
        BucketError          node/volumes/bucket.py: something cannot be done with a bucket
        CannotTakeOver       serialization/models/optimizers.py: a rank's is of another kind
        VolumeError          node/volumes/place.py: a volume cannot be had on a node
        TakenBack            api/prompts/keyboard.py: a question needs no answer any more
    KeyboardInterrupt
        Interrupted          cluster/errors.py: the user stopped a run
    OSError
        AgentGone            providers/base.py: the agent has ended
            MachineGone      providers/base.py: and its machine with it
        NotLetIn             providers/base.py: no way into a machine, until the user does something
    RuntimeError
        NoWaitingThread      transport/event_loop.py: the waiting thread was interrupted
    TypeError
        CannotGather         serialization/models/sharded.py: a part of it, without the rest
    ValueError
        Invalid              server/schema.py: JSON does not match the schema
        InvalidValue         notebook/options/option_type.py: an option's value is not of its type
        Unreadable           cluster/inventory/kernel_files.py: a kernel's state file is damaged
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


class SkyError(Exception):
    """What the user should know, in one sentence."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for this before it formats one itself.
        return [f"{type(self).__name__}: {self}"]


class UsageError(SkyError, ValueError):
    """What was typed cannot be done; the sentence says what to type instead."""


class Declined(UsageError):
    """The user was asked whether to start something, and said no."""


class ScriptFailed(SkyError):
    """A script has failed on a node.

    Attributes
    ----------
    status
        Its exit status, as a shell gives it: 128 and the number of the signal that ended it.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class DebuggerQuit(SkyError):
    """The user left the debugger in the middle of a cell, which ends it."""


class ClusterLost(SkyError):
    """The cluster, or a part that a run needs, is gone.

    Attributes
    ----------
    nodes
        The nodes whose loss was its end; none where it was ended.
    """

    def __init__(self, message: str, nodes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes)


class NoConnection(SkyError):
    """A node cannot be reached now; it may be there, and what runs on it may go on."""


def exit_status(error: SystemExit) -> int:
    """Return the status that Python would exit with, and print the text that it would print."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
