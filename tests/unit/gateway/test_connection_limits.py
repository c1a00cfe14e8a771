"""Shares of the file descriptors that gRPC connections may take."""

import pytest

from gateway.grpc_server import RESERVED, connection_limits


@pytest.mark.parametrize("descriptors", [1024, 20_000, 65_536])
def test_all_connections_fit(descriptors: int) -> None:
    clients, agents = connection_limits(descriptors)
    assert RESERVED + clients + 2 * agents <= descriptors
    assert clients >= 48
