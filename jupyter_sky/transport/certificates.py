"""What certificates are known by: the agents of a cluster let in whose fingerprint they know."""

from __future__ import annotations

import hashlib
import ssl


def fingerprint(certificate: str) -> str:
    """Return the SHA-256 digest of a certificate in PEM."""
    return fingerprint_of_der(ssl.PEM_cert_to_DER_cert(certificate))


def fingerprint_of_der(certificate: bytes) -> str:
    """Return the SHA-256 digest of a certificate as it goes over the wire."""
    return hashlib.sha256(certificate).hexdigest()
