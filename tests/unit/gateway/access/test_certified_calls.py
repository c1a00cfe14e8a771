"""Open calls of clients whose certificates are revoked."""

from __future__ import annotations

from gateway.access.certified_calls import CertifiedCalls
from synergai.errors import Unauthenticated


class Port:
    """A port whose revoked certificates a test sets."""

    def __init__(self) -> None:
        self.revoked: set[bytes] = set()
        self.closed: list[str] = []
        self.calls = CertifiedCalls(self._check, self.closed.append)

    def _check(self, pem: bytes) -> None:
        if pem in self.revoked:
            raise Unauthenticated("the client certificate has been revoked")


def test_connections_with_revoked_certificates_are_closed() -> None:
    port = Port()
    with port.calls.open("a:1", b"one"), port.calls.open("b:2", b"two"):
        port.calls.review()
        assert port.closed == []
        port.revoked = {b"one"}
        port.calls.review()
    assert port.closed == ["a:1"]


def test_connection_is_closed_once_for_all_its_calls() -> None:
    port = Port()
    with port.calls.open("a:1", b"one"):
        with port.calls.open("a:1", b"one"):
            pass
        port.revoked = {b"one"}
        port.calls.review()
    assert port.closed == ["a:1"]


def test_ended_calls_are_forgotten() -> None:
    port = Port()
    with port.calls.open("a:1", b"one"):
        pass
    port.revoked = {b"one"}
    port.calls.review()
    assert port.closed == []
