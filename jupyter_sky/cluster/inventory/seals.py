"""Seals of values that no file keeps, as they may be secrets: whether a node tells the true one.

A seal is a salted digest that takes a while to compute, so that nobody who reads the registry finds
a value by trying many.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_ROUNDS = 50_000  # about 20 ms


def seal(value: str) -> str:
    """Return the seal of a value."""
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}:{_digest(value, salt)}"


def fits(value: str, sealed: str) -> bool:
    """Return whether a value is the one that was sealed."""
    salt, _, digest = sealed.partition(":")
    return hmac.compare_digest(_digest(value, bytes.fromhex(salt)), digest)


def _digest(value: str, salt: bytes) -> str:
    data = value.encode(errors="surrogateescape")
    return hashlib.pbkdf2_hmac("sha256", data, salt, _ROUNDS).hex()
