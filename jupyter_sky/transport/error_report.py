"""Errors that say nothing of their own: what a collective raises where a peer has failed."""

from __future__ import annotations

import re

_OF_A_PEER = re.compile(
    r"gloo.*(Connection|Read error|Write error|Socket)|Connection (closed|reset) by peer"
    r"|NCCL.*abort|was aborted",
    re.I,
)


def is_consequence(text: str) -> bool:
    """Return whether the text of an error is that of a collective which a peer has left."""
    return _OF_A_PEER.search(text) is not None
