"""The tree of all exceptions, and the classes that any room may raise.

A user sees one sentence that says what to do, never a traceback of our own code. Each exception is
listed with its file::

    Exception
        SkyError             errors.py: one sentence for the user
            UsageError       errors.py: what the user typed cannot be done
                InvalidCell  notebook/errors.py: the cell does not compile
                Declined     errors.py: the user was asked, and said no
                NotOffered   providers/aws/market/selection.py: what fits is on no market
            NameTaken        errors.py: another notebook has, or starts, a cluster of that name
            ScriptFailed     errors.py: a script ended with an exit status that is not 0
            DebuggerQuit     errors.py: the user left the debugger of a cell with `q`
            ClusterLost      errors.py: the cluster, or part of it, is gone
            NoConnection     errors.py: a node cannot be reached now, but may still run
            RanksBusy        errors.py: another notebook has begun a run there, or restarts them
            GroupBroken      errors.py: the group was not formed, but may be next time
            BegunInPart      cluster/errors.py: some ranks were lost before they began a run
            RunStopped       cluster/errors.py: the user stopped a run that a task awaits
            TimedOut         cluster/errors.py: the run took longer than `--timeout`
            RegistryError    cluster/inventory/registry.py: the registry cannot be used
            UnreadableRow    cluster/inventory/machines.py: another version may have written it
            ClusterStopped   cluster/inventory/stops.py: its machines are off, and can be started
            StillRunning     cluster/stopping/power.py: its machines could not be turned off again
            NotWrittenBack   cluster/volumes/unattached.py: machines alone have some files
            VersionMismatch  cluster/version_check.py: the node's Python or jupyter_sky differs
            HostError        providers/ssh/connection/errors.py: a host cannot be used
                CommandError providers/ssh/connection/errors.py: a command on it failed
                TurnedAway   providers/ssh/connection/errors.py: it may let in a little later
            HostKeyError     providers/ssh/connection/errors.py: its key is not the known one
            LoginError       providers/ssh/connection/errors.py: it rejected our login
            AWSError         providers/aws/errors.py: AWS refused a request
            SlurmError       providers/slurm/login.py: a Slurm command failed
            Stopped          providers/aws/retries.py: the user stopped a launch
            NoCapacity       providers/aws/ec2/launch.py: AWS is short of instances that fit
            NotUploaded      api/volumes/mounted.py: a bucket lacks what a node has in a volume
            NoAnswer         server/kernel_client.py: a kernel did not answer
        RemoteError          cluster/errors.py: raised on a rank
            RankLost         cluster/errors.py: a rank's process ended in a run
        RemoteTraceback      cluster/errors.py: where it was raised, as the cause of a remote error
        ProtocolError        transport/frames.py: the bytes received are not a message
        HelpRequested        notebook/options/parser.py: the line asks for help
        ObjectGone           serialization/object_tokens/received.py: a rank has dropped an object
        BucketError          node/volumes/bucket.py: an operation on a bucket failed
        CannotTakeOver       node/rank/namespace/takeover/optimizers.py: a rank's optimizer differs
        TakesTooLong         node/rank/comparison/parts.py: a value has too much to compare in time
        VolumeError          node/volumes/place.py: a node cannot provide a volume
        TakenBack            api/prompts/keyboard.py: a question no longer needs an answer
    KeyboardInterrupt
        Interrupted          cluster/errors.py: the user stopped a run
            PartlySent       notebook/project/sending.py: what has arrived is not sent again
        StillCleaningUp      transport/event_loop.py: the user stopped its clean-up, which goes on
        CleanUpFailed        transport/event_loop.py: something may be left of what was stopped
    OSError
        AgentGone            providers/base.py: the agent has ended
            MachineGone      providers/base.py: and its machine with it
                MachineStopped providers/base.py: which can be started again
        NotLetIn             providers/base.py: no way into a machine, until the user does something
            Suspended        providers/base.py: nor does it do anything, until it is resumed
    RuntimeError
        NoWaitingThread      transport/event_loop.py: no thread waits for the event loop
    TypeError
        CannotGather         serialization/models/sharded.py: only some of its shards are known
    ValueError
        Invalid              server/schema.py: JSON does not match the schema
        InvalidValue         notebook/options/option_type.py: an option's value is not of its type
        Unreadable           cluster/inventory/kernel_files.py: a kernel's state file is damaged
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Self


class SkyError(Exception):
    """What the user should know, in one sentence."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for this before it formats one itself.
        return [f"{type(self).__name__}: {self}"]

    def anew(self) -> Self:
        """Return it to be raised once more, without the frames of the last time.

        An error that is kept would gather those of each time, and with them the user's values.
        """
        return self.with_traceback(None)


class UsageError(SkyError, ValueError):
    """What the user typed cannot be done; the message says what to type instead."""


class Declined(UsageError):
    """The user was asked whether to start something, and said no."""


class NameTaken(SkyError):
    """Another notebook or program has a cluster of that name, or starts one."""


class ScriptFailed(SkyError):
    """A script failed on a node.

    Attributes
    ----------
    status
        Its exit status as a shell reports it: 128 plus the signal's number if a signal ended it.
    """

    def __init__(self, message: str, status: int = 1) -> None:  # unpickling gives the message alone
        super().__init__(message)
        self.status = status


class DebuggerQuit(SkyError):
    """The user left the debugger in the middle of a cell, which ends the cell."""


OTHERS_RUN = "busy with a run that another notebook or program began"
"""Why a cluster, or a rank of it, cannot begin a run now."""

RUN_AGAIN = "Run the cell again to start a new one"
RESTARTS_TOO = " (`%sky restart` does so too)"
"""What to do about a lost cluster, in a notebook; a terminal has no cell with its options."""


NOTEBOOK_COMMANDS = ("push", "pull", "metrics", "panel", "auto", "dask", "debug", "forward")
"""Commands that mean nothing without a notebook."""

_SETTING = re.compile(r"`%config (Sky\.[^`]+)`")
_TERMINAL_COMMAND = re.compile(rf"(?<!%)%sky\b(?! (?:{'|'.join(NOTEBOOK_COMMANDS)})\b)")


def as_in_terminal(text: str) -> str:
    """Return a sentence with commands like ``%sky down`` as they are typed in a terminal."""
    return _TERMINAL_COMMAND.sub("jupyter sky", text)


def as_in_command(text: str) -> str:
    """Do the same for ``jupyter sky``, whose settings are in a file: it has no ``%config``."""
    return as_in_terminal(_SETTING.sub(r"`c.\1` in ipython_config.py", text))


class ClusterLost(SkyError):
    """The cluster, or a part that a run needs, is gone.

    Attributes
    ----------
    nodes
        The nodes whose loss ended it; empty if somebody ended it.
    reason
        What happened, without what to do.
    """

    def __init__(self, reason: str, nodes: Iterable[str] = (), then: str = "") -> None:
        super().__init__(f"{reason} {then}".rstrip())
        self.nodes = tuple(nodes)
        self.reason = reason


class NoConnection(SkyError):
    """A node cannot be reached now; it may still be up, and its run may continue."""


class RanksBusy(SkyError):
    """Ranks are busy with a run that another notebook or program began, or are being restarted."""


class GroupBroken(SkyError):
    """The process group was not formed this time, as when a rank was lost; the next may be."""


def exit_status(error: SystemExit) -> int:
    """Return the status that Python would exit with, printing the message that it would print."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
