"""Certificates for the agents of one cluster: agents talk to each other over mutual TLS."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_VALID = datetime.timedelta(days=3650)  # a cluster ends much earlier
_EARLIER = datetime.timedelta(days=1)  # clocks of nodes differ


@dataclass(frozen=True, repr=False)
class Credentials:
    """What an agent shows to its peers, and the authorities that it trusts; all as PEM."""

    authority: str
    certificate: str
    key: str

    def trusting(self, authority: str) -> Credentials:
        """Return the same, which trust further authorities."""
        return replace(self, authority=self.authority + authority)


def issue_credentials(names: Sequence[str]) -> list[Credentials]:
    """Return credentials for agents of these names, signed by a new authority.

    The authority's key is not kept: nodes that join later have an authority of their own.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("jupyter_sky cluster", authority_key, None, authority_key)
    made = []
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, authority, authority_key)
        made.append(
            Credentials(
                authority.public_bytes(serialization.Encoding.PEM).decode(),
                certificate.public_bytes(serialization.Encoding.PEM).decode(),
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ).decode(),
            )
        )
    return made


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    issuer_key: EllipticCurvePrivateKey,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    if issuer is None:
        # A cluster that has grown has several authorities of one name.
        made = made.add_extension(identifier, critical=False)
    return made.sign(issuer_key, hashes.SHA256())
