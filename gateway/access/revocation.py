"""Certificate revocation lists for client certificates.

gRPC for Python verifies chains of certificates but knows no revocation lists; HTTP and the work
sockets have OpenSSL check the same file during the handshake.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from msgspec import Struct

from gateway.access.watched_files import WatchedFiles
from synergai.errors import InvalidInput, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_log = logging.getLogger(__name__)

_PEM_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----\s*", re.DOTALL)
_LOG_S: Final = 60.0
"""Interval between two messages that a list has expired."""


class RevocationList(Struct, frozen=True):
    """The list of one authority.

    Attributes:
        serials: serial numbers of the revoked certificates.
        expires_at: Unix time by which the authority publishes the next list.
    """

    serials: frozenset[int]
    expires_at: float


class Issued(NamedTuple):
    """Identity of a certificate: its issuer, and the serial number that the issuer gave it."""

    issuer: x509.Name
    serial: int


class Authorities(Struct, frozen=True):
    """Authorities of client certificates.

    Attributes:
        lists: their lists.
        certificates: the certificates of each that another one of them has issued. One that signs
            itself is trusted as it is in the file.
    """

    lists: dict[x509.Name, RevocationList]
    certificates: dict[x509.Name, tuple[Issued, ...]]


class RevocationLists(WatchedFiles[Authorities]):
    """Lists of all authorities of client certificates, which follow their files.

    Args:
        path: PEM file with the lists.
        authorities: PEM files with the authorities that signed them.

    Raises:
        InvalidInput: on construction, if a file cannot be read or is invalid, or a list is not
            signed by one of the authorities.
    """

    def __init__(self, path: Path, authorities: Sequence[Path]) -> None:
        super().__init__(
            "certificate revocation lists", [path, *authorities], lambda: _read(path, authorities)
        )
        self._logged_at = -_LOG_S

    def check(self, pem: bytes) -> None:
        """Check that neither a verified certificate nor an authority above it is revoked.

        Raises:
            Unauthenticated: one is, or there is no current list of its issuer.
        """
        self._check(_issued(pem), "the client certificate", frozenset())

    def _check(self, certificate: Issued, what: str, below: frozenset[x509.Name]) -> None:
        issuer, serial = certificate
        found = self.content.lists.get(issuer)
        name = issuer.rfc4514_string()
        if found is None:
            raise Unauthenticated(f"the gateway has no certificate revocation list of {name}")
        if time.time() >= found.expires_at:
            self._log_expiry(name, found.expires_at)
            raise Unauthenticated(f"the gateway's revocation list of {name} has expired")
        if serial in found.serials:
            raise Unauthenticated(f"{what} has been revoked; get a new one")
        refusal = None
        for each in self.content.certificates.get(issuer, ()):
            # Authorities may have signed each other.
            if each.issuer in below:
                continue
            try:
                self._check(each, f"the certificate of authority {name}", below | {issuer})
            except Unauthenticated as error:
                refusal = error
            else:
                return  # one certificate of the authority is enough
        if refusal is not None:
            raise refusal

    def _log_expiry(self, name: str, expired_at: float) -> None:
        if time.monotonic() >= self._logged_at + _LOG_S:
            self._logged_at = time.monotonic()
            _log.error(
                "refusing client certificates: the revocation list of %s expired on %s; install "
                "the current one",
                name,
                datetime.fromtimestamp(expired_at, UTC).isoformat(timespec="seconds"),
            )


@lru_cache(maxsize=1024)
def _issued(pem: bytes) -> Issued:
    certificate = x509.load_pem_x509_certificate(pem)
    return Issued(certificate.issuer, certificate.serial_number)


def _read(path: Path, authorities: Sequence[Path]) -> Authorities:
    try:
        trusted = [each for file in authorities for each in _certificates(file)]
        lists = [x509.load_pem_x509_crl(pem) for pem in _PEM_LIST.findall(path.read_bytes())]
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"{path} has an invalid revocation list: {error}") from None
    if not lists:
        raise InvalidInput(f"{path} contains no certificate revocation lists in PEM format")
    found: dict[x509.Name, RevocationList] = {}
    for each in sorted(lists, key=lambda crl: crl.last_update_utc):
        if not any(_is_signed_by(each, authority) for authority in trusted):
            raise InvalidInput(
                f"{path}: the list of {each.issuer.rfc4514_string()} is not signed by an authority "
                "of clients or agents (--tls-clients-ca, --tls-client-ca)"
            )
        next_update = each.next_update_utc
        found[each.issuer] = RevocationList(
            frozenset(revoked.serial_number for revoked in each),
            float("inf") if next_update is None else next_update.timestamp(),
        )
    names = {authority.subject for authority in trusted}
    certificates: defaultdict[x509.Name, tuple[Issued, ...]] = defaultdict(tuple)
    for authority in trusted:
        if authority.issuer != authority.subject and authority.issuer in names:
            certificates[authority.subject] += (Issued(authority.issuer, authority.serial_number),)
    return Authorities(found, dict(certificates))


def _certificates(path: Path) -> Iterator[x509.Certificate]:
    yield from x509.load_pem_x509_certificates(path.read_bytes())


def _is_signed_by(revoked: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    if authority.subject != revoked.issuer:
        return False
    try:
        return revoked.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # raises TypeError for keys that cannot sign
    except TypeError:
        return False
