"""What the kernel says of the link of a connection."""

import socket
import struct
import sys
from typing import cast

import pytest

from synergai.wire.work_transport import LEAST_BYTES, LinkMeter, SentOver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these figures")
ROUND_TRIP_S = 0.003


class Connection:
    def __init__(self) -> None:
        self.rate = 0
        self.acknowledged = 2 * LEAST_BYTES
        self.is_app_limited = False

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        info = bytearray(size)
        info[7] = self.is_app_limited
        struct.pack_into("=Q", info, 120, self.acknowledged)
        struct.pack_into("=I", info, 148, round(ROUND_TRIP_S * 1e6))
        struct.pack_into("=Q", info, 160, self.rate)
        return bytes(info)


def measure(meter: LinkMeter, connection: Connection) -> float | None:
    found = meter.measure(cast("socket.socket", connection))
    return None if found is None else found.bytes_per_s


def test_link_is_unknown_until_enough_was_sent() -> None:
    meter, connection = LinkMeter(), Connection()
    connection.rate, connection.acknowledged = 1000, LEAST_BYTES - 1
    assert measure(meter, connection) is None
    connection.acknowledged += 1
    found = meter.measure(cast("socket.socket", connection))
    assert found == SentOver(1000.0, ROUND_TRIP_S)


def test_rate_of_small_messages_does_not_replace_that_of_the_link() -> None:
    meter, connection = LinkMeter(), Connection()
    connection.rate, connection.is_app_limited = 500, True
    assert measure(meter, connection) == 500, "nothing better is known"
    connection.rate, connection.is_app_limited = 1000, False
    assert measure(meter, connection) == 1000
    connection.rate, connection.is_app_limited = 10_000, True
    assert measure(meter, connection) == 1000
    connection.rate, connection.is_app_limited = 200, False
    assert measure(meter, connection) == 200
