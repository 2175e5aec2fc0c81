"""The lab: hosts on one machine, each with a network, an SSH server and a home of its own.

A host is a set of Linux namespaces: network, processes, mounts, host name. Its first process ends
and everything on the host ends with it, as when the power is cut. The hosts of a lab sit on one
bridge, at addresses that only this machine has. Nothing is simulated but the walls between them:
sshd, TCP, routes and firewalls are the real ones.
"""

from __future__ import annotations

from tests.lab.host import Host
from tests.lab.lab import Lab, missing

__all__ = ["Host", "Lab", "missing"]
