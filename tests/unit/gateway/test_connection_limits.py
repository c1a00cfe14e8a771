"""Shares of the file descriptors that gRPC connections may take."""

import pytest

from gateway.admission.connections import PER_CONNECTION, RESERVED, connection_limits
from gateway.http.connections import MAX_CONNECTIONS, RESERVED_CONNECTIONS
from gateway.hub.work_sockets import MAX_UNAUTHENTICATED


def test_reserve_holds_everything_else() -> None:
    assert RESERVED > MAX_CONNECTIONS + RESERVED_CONNECTIONS + MAX_UNAUTHENTICATED


@pytest.mark.parametrize("descriptors", [1024, 20_000, 65_536])
def test_all_connections_fit(descriptors: int) -> None:
    clients, agents = connection_limits(descriptors)
    taken = PER_CONNECTION * clients + (PER_CONNECTION + 1) * agents
    assert RESERVED + taken <= descriptors
    assert clients >= 48


def test_some_connections_are_always_allowed() -> None:
    assert min(connection_limits(256)) > 0
