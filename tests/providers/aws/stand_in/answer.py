"""What goes back to who asks the stand-in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Answer:
    """An answer over HTTP."""

    body: bytes
    status: str = "200 OK"
    kind: str = "text/xml"
