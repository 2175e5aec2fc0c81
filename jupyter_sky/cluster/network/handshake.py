"""How two processes of this computer make sure of each other over a port that is open to all.

Both know a key. Who connects says a number that is new and shows that it knows the key, and who
listens shows the same in its answer: a port that was closed may be another user's by now.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_NONCE = 32  # bytes
_PROOF = hashlib.sha256().digest_size

HELLO = _NONCE + _PROOF
"""Bytes of what a connection begins with."""

ANSWER = _PROOF
"""Bytes of what is answered."""


def hello(key: bytes) -> tuple[bytes, bytes]:
    """Return what a connection begins with, and what is answered by who knows the key."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + _proof(key, b"connects", nonce), _proof(key, b"listens", nonce)


def answer(key: bytes, said: bytes) -> bytes | None:
    """Return the answer to what a connection began with; ``None`` to who does not know the key."""
    nonce, proof = said[:_NONCE], said[_NONCE:]
    is_known = hmac.compare_digest(proof, _proof(key, b"connects", nonce))
    return _proof(key, b"listens", nonce) if is_known else None


def _proof(key: bytes, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + nonce, "sha256")
