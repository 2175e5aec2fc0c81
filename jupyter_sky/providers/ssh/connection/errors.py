"""What is wrong with a host. The texts do not name it: the caller knows what the user calls it.

::

    SkyError
    ├── HostError           a host cannot be used
    │   └── CommandError    a command failed there
    ├── HostKeyError        its key is not known, or not the known one
    └── LoginError          it accepts none of these keys
"""

from __future__ import annotations

from jupyter_sky.errors import SkyError


class HostError(SkyError):
    """A host cannot be used."""


class CommandError(HostError):
    """A command failed on a host; the text has its last lines."""


class HostKeyError(SkyError):
    """The key of a host is not known, or not the known one."""


class LoginError(SkyError):
    """The host accepts none of these keys."""
