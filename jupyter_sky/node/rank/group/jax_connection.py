"""What connects this process with others in JAX, which it does only once.

A Stop, or the error of a rank, leaves others in a collective that waits for it. On processors, that
is one of gloo's, which ends with an error where its connections are shut down. JAX goes on with the
same connections afterwards: its later collectives fail as well, but all variables are kept.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from jupyter_sky.transport.protocol.error_report import texts_of

CUT_OFF = (
    "JAX's ranks were cut off from each other in a collective, and JAX connects a process only "
    "once: further collectives fail. Variables are kept: save what you need, for example with "
    "`--gather`, and `%sky restart` connects new processes."
)

_FAILED = re.compile(r"\bGloo [\w-]+ failed: ")


def coordinator_port() -> int | None:
    """Return the port at which JAX's processes find each other; ``None`` if it connects none.

    JAX ends a process that loses this connection.
    """
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    address = getattr(state, "coordinator_address", None)
    if not isinstance(address, str) or getattr(state, "client", None) is None:
        return None
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else None


def is_cut_off(error: BaseException | None) -> bool:
    """Return whether an error is that of a collective whose ranks are not connected any more."""
    if coordinator_port() is None:
        return False
    return any(map(_FAILED.search, texts_of(error, (ValueError, RuntimeError))))
