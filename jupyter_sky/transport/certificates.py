"""Fingerprints of certificates, by which the agents of a cluster know each other."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 digest of a certificate in PEM."""
    return fingerprint_of_der(ssl.PEM_cert_to_DER_cert(certificate))


def fingerprint_of_der(certificate: bytes) -> str:
    """Return the SHA-256 digest of a certificate in DER, its form on the wire."""
    return hashlib.sha256(certificate).hexdigest()
