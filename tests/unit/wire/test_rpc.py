import contextlib
import gc
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from gateway.journal.postgresql.leadership import LEASE_S
from synergai.v1 import hub_pb2
from synergai.wire import rpc


def test_invalid_bytes_become_malformed_without_raising() -> None:
    marker = rpc.deserializer(hub_pb2.WorkOrders)(b"\xff\xff\xff")
    assert isinstance(marker, rpc.Malformed)
    assert str(marker.error()) == "the message is not a valid synergai.v1.WorkOrders"


def test_raw_deserializer_keeps_the_serialised_message() -> None:
    data = hub_pb2.WorkOrders(stops=[3]).SerializeToString()
    raw = rpc.raw_deserializer(hub_pb2.WorkOrders.FromString, hub_pb2.WorkOrders)(data)
    assert isinstance(raw, rpc.RawRequest)
    assert raw.data is data
    assert list(raw.parsed.stops) == [3]


def test_clients_of_several_gateways_keep_a_leader_that_pauses_within_its_lease() -> None:
    options = dict(rpc.channel_options(failover=True))
    assert int(options["grpc.http2.ping_timeout_ms"]) > 1000 * LEASE_S


def test_serialised_response_is_not_serialised_again() -> None:
    data = b"serialised"
    assert rpc.serialise(data) is data
    assert rpc.serialise(hub_pb2.LoadEngine()) == b""


async def test_call_that_grpc_has_ended_is_no_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(_request: hub_pb2.WorkOrders, _context: object) -> bytes:
        raise grpc.aio.BaseError("Server already stopped.")

    method = rpc.unary(handle, hub_pb2.WorkOrders)
    assert method.unary_unary is not None
    with pytest.raises(grpc.aio.BaseError):
        await method.unary_unary(hub_pb2.WorkOrders(), MagicMock())
    assert caplog.text == ""


async def test_failure_of_a_handler_leaves_no_garbage() -> None:
    class FailedError(grpc.aio.BaseError):
        pass

    async def handle(_request: hub_pb2.WorkOrders, _context: object) -> bytes:
        raise FailedError

    behaviour: Any = rpc.unary(handle, hub_pb2.WorkOrders).unary_unary
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(FailedError):
            await behaviour(hub_pb2.WorkOrders(), MagicMock())
        assert not [each for each in gc.get_objects() if type(each) is FailedError]
    finally:
        gc.enable()
