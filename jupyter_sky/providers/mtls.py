"""Certificates for the agents of one cluster: agents talk to each other over mutual TLS.

What is wanted: an agent is accepted for as long as it belongs to the cluster, be it an hour or two
years, and no longer.

What does not work: an expiry date in the certificate. A cluster that is up for longer would fall
apart, a node with a wrong clock would never be accepted, and a node that has left would be accepted
until the date. Somebody would have to renew certificates in time, over links that may be broken.

The solution: each agent keeps the fingerprints of the certificates that belong to the cluster now,
and accepts no others (`node.network.peers`). A certificate is valid from when its agent joins until
it leaves. Its key is only in the folder of the agent, and is removed with it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jupyter_sky.transport.certificates import fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

# The dates do not limit its validity. RFC 5280 defines the latter for this purpose.
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True, repr=False)
class Credentials:
    """What an agent shows to its peers, and whom it lets in at first.

    Attributes
    ----------
    authority
        The authorities that have signed for its peers, in PEM.
    certificate, key
        Its own certificate and key, in PEM.
    peers
        Fingerprints of its peers; replaced by those of the group's nodes when a group is formed.
    """

    authority: str
    certificate: str
    key: str
    peers: tuple[str, ...]

    def trusting(self, authority: str, peers: Iterable[str]) -> Credentials:
        """Return the same credentials, accepting further agents."""
        return replace(self, authority=self.authority + authority, peers=(*self.peers, *peers))


def issue_credentials(names: Sequence[str]) -> list[Credentials]:
    """Return credentials for agents of these names, signed by a new authority.

    The authority's key is not kept: nodes that join later get an authority of their own.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("jupyter_sky cluster", authority_key, None, authority_key)
    signed = authority.public_bytes(serialization.Encoding.PEM).decode()
    made = []
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, authority, authority_key)
        shown = certificate.public_bytes(serialization.Encoding.PEM).decode()
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()
        made.append(Credentials(signed, shown, secret, ()))
    every = tuple(fingerprint(each.certificate) for each in made)
    return [replace(each, peers=every) for each in made]


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
    identifier = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    if issuer is None:
        # A cluster that has grown has several authorities with the same name.
        made = made.add_extension(identifier, critical=False)
    return made.sign(issuer_key, hashes.SHA256())
