"""How two processes of this computer authenticate each other over a port that all users can open.

Both know a key. The client sends a new random number and proves that it knows the key, and the
server proves the same in its answer: another user may listen on a port that was closed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_NONCE = 32  # bytes
_PROOF = hashlib.sha256().digest_size

HELLO = _NONCE + _PROOF
"""Bytes with which a client begins."""

ANSWER = _PROOF
"""Bytes of the server's answer."""


def hello(key: bytes) -> tuple[bytes, bytes]:
    """Return the bytes with which a client begins, and the answer of a server with the key."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + _proof(key, b"connects", nonce), _proof(key, b"listens", nonce)


def answer(key: bytes, said: bytes) -> bytes | None:
    """Return the answer to a client's first bytes; ``None`` if it does not know the key."""
    nonce, proof = said[:_NONCE], said[_NONCE:]
    is_known = hmac.compare_digest(proof, _proof(key, b"connects", nonce))
    return _proof(key, b"listens", nonce) if is_known else None


def _proof(key: bytes, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + nonce, "sha256")
