"""Connection of a client to its gateways."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from synergai.client.channel import GatewayChannel
from synergai.client.priority_semaphore import PrioritySemaphore
from synergai.client.requests import InputConverter
from synergai.client.shared_stream import SharedStream
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import Engine, EngineName
from synergai.errors import InvalidInput
from synergai.runtime.addresses import check_target
from synergai.wire.bearer_token import token_metadata
from synergai.wire.converters import engine_from_metadata
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, ENVELOPE_BYTES
from synergai.wire.tls import Identity, channel_credentials

if TYPE_CHECKING:
    from pathlib import Path


class GatewayConnection:
    """Connection to a gateway, or to the leader of several; `Client` extends it, see there."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        attempts: int = 4,
        patience: float = 30.0,
        in_flight: int = 1024,
        tls_ca: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        token: str = "",
        insecure: bool = False,
    ) -> None:
        if attempts < 1:
            raise InvalidInput(f"attempts must be at least 1, not {attempts}")
        if in_flight < 1:
            raise InvalidInput(f"in_flight must be at least 1, not {in_flight}")
        self.targets = tuple(map(check_target, target.split(",")))
        self._max_message_bytes = max_message_bytes
        self._attempts = attempts
        self._patience = patience
        self._slots = PrioritySemaphore(in_flight)
        self._credentials = channel_credentials(tls_ca, Identity.read(tls_cert, tls_key))
        self._metadata = token_metadata(
            token, target, encrypted=tls_ca is not None, insecure=insecure
        )
        self._in_flight = in_flight
        self._opened: GatewayChannel | None = None
        self._inputs = InputConverter(partial(self._describe, within_s=None))

    async def __aenter__(self) -> Self:
        # A channel is bound to the running event loop, so it is opened here.
        self._opened = channel = GatewayChannel(
            self.targets,
            self._max_message_bytes,
            self._attempts,
            self._patience,
            self._credentials,
            self._metadata,
        )
        self._shared_stream = SharedStream(channel, self._max_message_bytes, self._in_flight)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._shared_stream.close()
        await self._channel.close()
        await self._inputs.close()

    @property
    def _channel(self) -> GatewayChannel:
        if self._opened is None:
            raise InvalidInput("use the client in an `async with Client(...) as client:` block")
        return self._opened

    @property
    def max_input_bytes(self) -> int:
        """Size of the largest input of a job, serialised."""
        return self._max_message_bytes - ENVELOPE_BYTES

    async def _describe(self, name: str, within_s: float | None) -> Engine:
        """Return the description of an engine; the gateway waits until it has been inspected."""
        method = self._channel.oip.ModelMetadata
        from synergai.oip import inference_pb2

        engine, _, version = name.partition("/")
        request = inference_pb2.ModelMetadataRequest(name=engine, version=version)
        response = await self._channel.call(method, request, timeout=within_s)
        described = engine_from_metadata(response)
        return replace(described, name=EngineName(name)) if version else described
