"""Ways in which a worker gets the tensors of a stage: its own, from their holder, or relayed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import TensorsLost
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.v1.hub_pb2 import Wanted
from synergai.wire.request_codec import iter_fields
from synergai.wire.work_messages import RelayedTensors, Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from synergai.v1.hub_pb2 import Pull
    from synergai.wire.request_codec import Buffer
    from worker_agent.peers.client import Peers
    from worker_agent.peers.held import HeldTensorStore

RELAYED_S: Final = 10.0
"""Longest time until the gateway has relayed tensors."""


class Pulls:
    """Pulls tensors for the worker of one registration.

    Args:
        gateway_host: which stands for the host of an agent on the gateway's machine.
        send: sends a report to the gateway.
    """

    def __init__(
        self,
        held: HeldTensorStore,
        peers: Peers,
        gateway_host: str,
        send: Callable[[Reports], None],
    ) -> None:
        self._held = held
        self._peers = peers
        self._gateway_host = gateway_host
        self._send = send
        self._relayed: dict[str, asyncio.Future[Sequence[Buffer]]] = {}

    async def pull(self, pull: Pull, request: Buffer) -> bytes:
        """Return a serialised request with the tensors that belong to it."""
        contents = self._held.get(pull.token) or await self._fetch(pull)
        if not contents:
            raise TensorsLost(f"worker {pull.worker_id!r} no longer has the tensors of a stage")
        completed = b"".join((request, *contents))
        if not _are_tensors(memoryview(completed)[len(request) :]):
            raise TensorsLost(f"worker {pull.worker_id!r} sent other fields than tensors")
        return completed

    def send(self, tokens: Iterable[str]) -> None:
        """Send held tensors to the gateway, which relays them."""
        for token in tokens:
            tensors = RelayedTensors(token, self._held.get(token) or ())
            self._send(Reports(relayed=(tensors,)))

    def receive(self, tensors: RelayedTensors) -> None:
        """Take relayed tensors, if they are still waited for."""
        waiting = self._relayed.get(tensors.token)
        if waiting is not None and not waiting.done():
            waiting.set_result(tensors.contents)

    async def _fetch(self, pull: Pull) -> Sequence[Buffer]:
        if pull.address:
            address = self._gateway_host + pull.address if pull.address[0] == ":" else pull.address
            contents = await self._peers.pull(pull, address)
            if contents is not None:
                return (contents,) if len(contents) else ()
        return await self._relay(pull)

    async def _relay(self, pull: Pull) -> Sequence[Buffer]:
        token = pull.token
        waiting = self._relayed.get(token)
        if waiting is None:
            waiting = self._relayed[token] = asyncio.get_running_loop().create_future()
            self._send(Reports(wanted=(Wanted(token=token, worker_id=pull.worker_id),)))
        try:
            async with asyncio.timeout(RELAYED_S):
                return await asyncio.shield(waiting)
        except TimeoutError:
            return ()
        finally:
            self._relayed.pop(token, None)


def _are_tensors(contents: memoryview) -> bool:
    """Return whether contents set no other field of a request, such as its parameters."""
    tensors = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
    try:
        return all(number == tensors for number, *_ in iter_fields(contents))
    except DecodeError:
        return False
