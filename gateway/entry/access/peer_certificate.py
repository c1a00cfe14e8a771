"""The verified certificate of a client's connection."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct


class PeerCertificate(Struct, frozen=True):
    """A client's certificate, whose chain TLS has verified."""

    names: tuple[str, ...]
    alternative_names: frozenset[str] = frozenset()


def peer_certificate(der: bytes | None) -> PeerCertificate | None:
    """Return the certificate of a client by its DER; None without one."""
    return None if der is None else _parse(der)


@lru_cache(maxsize=256)
def _parse(der: bytes) -> PeerCertificate:
    # Imported on demand: most gateways verify no certificates of clients.
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    alternative: list[str] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        pass
    else:
        alternative = [str(name.value) for name in extension.value]
    names = (*(str(attribute.value) for attribute in common), *alternative)
    return PeerCertificate(tuple(dict.fromkeys(names)), frozenset(alternative))
