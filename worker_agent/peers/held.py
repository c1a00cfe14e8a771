"""Outputs of stages that stay with the agent until a worker pulls them for the next stage."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.wire.limits import MAX_HELD_BYTES
from synergai.wire.request_codec import request_parts, split_response
from synergai.wire.validation import EXIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.wire.request_codec import Buffer

LEAST_BYTES: Final = 16 << 10
"""Smaller responses are reported with their contents, which costs less than to pull them."""
_LIMIT_SHARE: Final = 8
"""Part of the limit of the worker's memory that held tensors may take."""
HELD_S: Final = 1800.0
"""The gateway drops tensors as soon as nobody needs them; older ones, it may have forgotten.

A query that waits for its next stage longer than that begins again.
"""
TOKEN_BYTES: Final = 16
TOKEN_LENGTH: Final = 2 * TOKEN_BYTES


class Holding(NamedTuple):
    """A response whose contents are held.

    Attributes:
        response: the serialised ``ModelInferResponse`` without its contents.
    """

    response: bytes
    token: str
    size: int


class _Entry(NamedTuple):
    owner: object
    parts: Sequence[Buffer]
    size: int
    at: float


class HeldTensorStore:
    """The held tensors of all workers of this machine, within a limit of their memory."""

    def __init__(
        self, memory_limit_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_bytes = MAX_HELD_BYTES
        if memory_limit_bytes:
            self._limit_bytes = min(MAX_HELD_BYTES, memory_limit_bytes // _LIMIT_SHARE)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self.used_bytes = 0

    def hold(self, owner: object, response: bytes) -> Holding | None:
        """Hold the contents of a response; None if it is small, or there is no room for it."""
        size = len(response)
        if size < LEAST_BYTES or self.used_bytes + size > self._limit_bytes:
            return None
        rest, contents = split_response(response)
        if not contents or EXIT.encode() in rest:  # it is the answer of the engine
            return None
        token = secrets.token_hex(TOKEN_BYTES)
        parts = request_parts(ModelInferRequest(), contents)
        self._entries[token] = _Entry(owner, parts, size, self._clock())
        self.used_bytes += size
        return Holding(rest, token, size)

    def get(self, token: str) -> Sequence[Buffer] | None:
        """Return tensors as parts of ``raw_input_contents`` of the next stage's request."""
        entry = self._entries.get(token)
        return None if entry is None else entry.parts

    def drop(self, token: str) -> None:
        """Free tensors, if they are held."""
        if (entry := self._entries.pop(token, None)) is not None:
            self.used_bytes -= entry.size

    def drop_all(self, owner: object) -> None:
        """Free the tensors of an owner."""
        for token in [token for token, each in self._entries.items() if each.owner is owner]:
            self.drop(token)

    def drop_old(self) -> None:
        """Free tensors that were held too long."""
        since = self._clock() - HELD_S
        for token in [token for token, each in self._entries.items() if each.at < since]:
            self.drop(token)
