"""What the kernel has learned of a link from the transfers of a TCP connection; on Linux only."""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

LEAST_BYTES: Final = 1 << 20
"""Bytes that the peer must have acknowledged: fewer show how much was sent, not what can be."""
_APP_LIMITED: Final = 7
_ACKNOWLEDGED: Final = 120
_LEAST_ROUND_TRIP: Final = 148
_DELIVERY_RATE: Final = 160
_SIZE: Final = 168
"""Offsets of fields of ``struct tcp_info``, and the size of those up to them."""
_UNKNOWN: Final = 0xFFFFFFFF


class SentOver(NamedTuple):
    """What one end of a link has learned by sending.

    Attributes:
        bytes_per_s: rate at which the peer received the last larger transfer.
        round_trip_s: the shortest of the last minutes.
    """

    bytes_per_s: float
    round_trip_s: float


class LinkMeter:
    """What is known of the link of one connection.

    A rate is that of the link only if there was always more to send. A few small messages pass
    faster than that through a link that lets bursts pass, and are no reason to forget it.
    """

    def __init__(self) -> None:
        self._known: SentOver | None = None
        self._is_of_link = False

    def measure(self, connection: socket.socket | TransportSocket) -> SentOver | None:
        """Return what is known of the link by now; None if too little was sent."""
        info = _read(connection)
        if info is None or struct.unpack_from("=Q", info, _ACKNOWLEDGED)[0] < LEAST_BYTES:
            return self._known
        (bytes_per_s,) = struct.unpack_from("=Q", info, _DELIVERY_RATE)
        round_trip_s = _round_trip_s(info)
        is_of_link = not info[_APP_LIMITED] & 1
        if bytes_per_s and round_trip_s is not None and is_of_link >= self._is_of_link:
            self._known, self._is_of_link = SentOver(float(bytes_per_s), round_trip_s), is_of_link
        return self._known


def measure_round_trip(connection: socket.socket | TransportSocket) -> float | None:
    """Return the shortest round trip of the last minutes in seconds; None if it is unknown."""
    info = _read(connection)
    return None if info is None else _round_trip_s(info)


def _read(connection: socket.socket | TransportSocket) -> bytes | None:
    if sys.platform != "linux":
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    return info if len(info) == _SIZE else None


def _round_trip_s(info: bytes) -> float | None:
    (round_trip_us,) = struct.unpack_from("=I", info, _LEAST_ROUND_TRIP)
    return None if round_trip_us == _UNKNOWN else round_trip_us * 1e-6
