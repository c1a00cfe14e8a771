"""The rules of `synergai.protocol.rpc` that need no network."""

from synergai.protocol import rpc
from synergai.v1 import hub_pb2


def test_bytes_that_are_no_message_become_malformed_and_do_not_raise() -> None:
    marker = rpc.deserializer(hub_pb2.WorkOrders)(b"\xff\xff\xff")
    assert isinstance(marker, rpc.Malformed)
    assert str(marker.error()) == "the message is not a valid synergai.v1.WorkOrders"


def test_raw_parsing_keeps_the_bytes_beside_the_message() -> None:
    data = hub_pb2.WorkOrders(stops=[3]).SerializeToString()
    raw = rpc.raw_deserializer(hub_pb2.WorkOrders.FromString, hub_pb2.WorkOrders)(data)
    assert isinstance(raw, rpc.RawRequest)
    assert raw.data is data
    assert list(raw.parsed.stops) == [3]


def test_a_response_that_is_serialised_already_passes_untouched() -> None:
    data = b"serialised"
    assert rpc.serialise(data) is data
    assert rpc.serialise(hub_pb2.LoadEngine()) == b""
