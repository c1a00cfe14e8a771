"""Certificate authorities, certificates and JSON web tokens for tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)
PEM = serialization.Encoding.PEM
_CERTIFIES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(
        self, folder: Path, name: str = "authority", parent: Authority | None = None
    ) -> None:
        self._folder = folder
        self.name = name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._now = dt.datetime.now(dt.UTC)
        issuer = self if parent is None else parent
        self._certificate = (
            issuer._builder(_name(name), self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .add_extension(_CERTIFIES, critical=True)
            .sign(issuer.key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(PEM))

    def issue(self, name: str, *, server: bool = False, days: int = 1) -> tuple[Path, Path]:
        """Issue a certificate; return its file and that of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key.public_key(), days)
        if server:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        files = self._folder / f"{name}.{self.name}.pem", self._folder / f"{name}.{self.name}.key"
        files[0].write_bytes(certificate.public_bytes(PEM))
        files[1].write_bytes(
            key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return files

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int = 1
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name(self.name))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - 3 * DAY)
            .not_valid_after(self._now + days * DAY)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )


class Issuer:
    """An issuer of JSON web tokens.

    Attributes:
        name: its claim ``iss``.
        audience: the claim ``aud`` of its tokens.
        key: the signing key.
    """

    name = "https://login.example.org"
    audience = "synergai"

    def __init__(self, key_id: str = "1") -> None:
        self.key_id = key_id
        self.key = ec.generate_private_key(ec.SECP256R1())

    def publish(self, path: Path) -> None:
        text = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key())
        key = json.loads(text) | {"kid": self.key_id, "use": "sig", "alg": "ES256"}
        path.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, days: float = 1, **claims: object) -> str:
        """Return a token; an expired one if `days` is negative."""
        content = {
            "iss": self.name,
            "aud": self.audience,
            "sub": subject,
            "exp": dt.datetime.now(dt.UTC) + days * DAY,
            **claims,
        }
        return jwt.encode(content, self.key, "ES256", {"kid": self.key_id})
