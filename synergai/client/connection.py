"""Connection of a client to its gateways."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from synergai.client.channel import GatewayChannel
from synergai.client.requests import InputConverter
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import Engine, EngineName
from synergai.errors import InvalidInput
from synergai.runtime.addresses import check_target
from synergai.wire.converters import engine_from_metadata
from synergai.wire.credentials import Identity, channel_credentials, token_metadata
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, ENVELOPE_BYTES


class GatewayConnection:
    """Connection to a gateway, or to the leader of several; `Client` extends it, see there."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        attempts: int = 4,
        patience: float = 30.0,
        tls_ca: Path | str | None = None,
        tls_cert: Path | str | None = None,
        tls_key: Path | str | None = None,
        token: str = "",
        insecure: bool = False,
    ) -> None:
        if attempts < 1:
            raise InvalidInput(f"attempts must be at least 1, not {attempts}")
        self.targets = tuple(map(check_target, target.split(",")))
        self._max_message_bytes = max_message_bytes
        self._attempts = attempts
        self._patience = patience
        authority, certificate, key = (
            None if file is None else Path(file) for file in (tls_ca, tls_cert, tls_key)
        )
        self._credentials = channel_credentials(authority, Identity.read(certificate, key))
        self._metadata = token_metadata(
            token, target, encrypted=tls_ca is not None, insecure=insecure
        )
        self._opened: GatewayChannel | None = None

    async def connect(self) -> Self:
        """Open the client, or open it again after `close`, or after its event loop has ended.

        It opens at the first call otherwise. Does not wait for the gateway.
        """
        if self._opened is None or self._opened.has_ended:
            self._open()
        return self

    async def close(self) -> None:
        """Close the client; calls in flight fail with `Cancelled`, and so do further ones."""
        channel = self._channel
        channel.closed = True  # no more calls; `connect` opens another, even if this is cancelled
        try:
            await channel.close()
        finally:
            await self._inputs.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _channel(self) -> GatewayChannel:
        return self._opened or self._open()

    def _open(self) -> GatewayChannel:
        try:
            asyncio.get_running_loop()  # which the channel is bound to
        except RuntimeError:
            raise InvalidInput("connect the client first, with `await client.connect()`") from None
        self._opened = channel = GatewayChannel(
            self.targets,
            self._max_message_bytes,
            self._attempts,
            self._patience,
            self._credentials,
            self._metadata,
        )
        # In a loop that has ended, calls may have left fetches pending.
        self._inputs = InputConverter(partial(self._describe, within_s=None))
        return channel

    @property
    def max_input_bytes(self) -> int:
        """Size of the largest input of a job, serialised."""
        return self._max_message_bytes - ENVELOPE_BYTES

    async def _describe(
        self, name: str, within_s: float | None, *, is_deadline: bool = False
    ) -> Engine:
        """Return the description of an engine; the gateway waits until it has been inspected."""
        method = self._channel.oip.ModelMetadata
        from synergai.oip import inference_pb2

        engine, _, version = name.partition("/")
        request = inference_pb2.ModelMetadataRequest(name=engine, version=version)
        response = await self._channel.call(
            method, request, timeout=within_s, is_deadline=is_deadline
        )
        described = engine_from_metadata(response)
        return replace(described, name=EngineName(name)) if version else described
