import ssl
from pathlib import Path
from unittest.mock import Mock

import pytest

from synergai.wire.grpcio_server import GrpcioCall

CERTIFICATE = (Path(__file__).parents[2] / "integration" / "tls" / "agent.pem").read_bytes()
PLAIN = {"transport_security_type": [b"insecure"]}
ENCRYPTED = {"transport_security_type": [b"ssl"]}


def call_from(peer: str, security: dict[str, list[bytes]]) -> GrpcioCall:
    return GrpcioCall(Mock(**{"peer.return_value": peer, "auth_context.return_value": security}))


@pytest.mark.parametrize(
    ("peer", "host", "address", "local"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1", "ipv4:127.0.0.1:4711", True),
        ("ipv6:%5B::1%5D:4711", "::1", "ipv6:[::1]:4711", True),
        ("ipv6:%5B2001:db8::1%5D:80", "2001:db8::1", "ipv6:[2001:db8::1]:80", False),
        ("unknown", "", "ipv4::0", False),
    ],
)
def test_client_has_the_address_of_its_socket(
    peer: str, host: str, address: str, local: bool
) -> None:
    client = call_from(peer, PLAIN).peer
    assert (client.host, client.address, client.is_local) == (host, address, local)


def test_client_has_its_verified_certificate() -> None:
    known = call_from("ipv4:127.0.0.1:1", {**ENCRYPTED, "x509_pem_cert": [CERTIFICATE]}).peer
    assert known.is_encrypted
    assert known.certificate == ssl.PEM_cert_to_DER_cert(CERTIFICATE.decode())
    unknown = call_from("ipv4:127.0.0.1:1", ENCRYPTED).peer
    assert unknown.is_encrypted
    assert unknown.certificate is None
    assert not call_from("ipv4:127.0.0.1:1", PLAIN).peer.is_encrypted
