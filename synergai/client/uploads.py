"""Jobs over the client's own inputs: upload, then submit."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc

from synergai.client.channel import Patience
from synergai.client.input_sources import OtherInputs, open_source, read_messages
from synergai.client.upload_messages import InputEncoder
from synergai.data.inventory import InputInventory
from synergai.errors import (
    Conflict,
    EngineUnusable,
    IdempotencyConflict,
    InternalError,
    InvalidInput,
    Unavailable,
)
from synergai.runtime.tasks import TaskBag, is_being_cancelled
from synergai.v1 import jobs_pb2
from synergai.wire.converters import job_spec_to_proto
from synergai.wire.writes import keep_status, write_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from synergai.client.channel import GatewayChannel
    from synergai.client.input_sources import JobInputs
    from synergai.client.upload_messages import UnusableInput, UploadMessage
    from synergai.domain import Engine
    from synergai.jobs import JobSpec


_WINDOW_BYTES: Final = 32 << 20
"""Bytes that are sent and not stored yet, and are kept to be sent again."""
_WAITED_S: Final = 30.0
"""A call that lasted longer, after the gateway had answered, did not fail to reach it."""
_READ_AHEAD: Final = 2
"""Messages that are made while others are written."""


@dataclass(slots=True)
class UploadProgress:
    """Progress of an upload.

    Attributes:
        stored: inputs that the gateway has stored.
        read: inputs that have been read, or were stored by an earlier upload.
        size: bytes that have been sent.
        unusable: inputs among those read that are unusable.
        new: the unusable inputs since the last report, in order.
    """

    stored: int = 0
    read: int = 0
    size: int = 0
    unusable: int = 0
    new: tuple[UnusableInput, ...] = ()


class UploadCall:
    """A call of Upload, whose requests are written by a separate task.

    Iterating over it yields the receipts, and raises the error that the call ended with, or that
    of making a request.
    """

    def __init__(self, channel: GatewayChannel, requests: AsyncIterator[bytes]) -> None:
        self._channel = channel
        self._gateway = channel.gateway
        self._call = keep_status(channel.upload())
        self._tasks = TaskBag()
        self._writer = self._tasks.start_awaited(write_all(self._call, requests))

    async def __aiter__(self) -> AsyncIterator[jobs_pb2.UploadReceipt]:
        """Yield the receipts; raise the error of the call, or of making a request."""
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as failure:
            raise self._channel.to_error(failure, self._gateway) from None
        except asyncio.CancelledError as cancellation:
            self._check_writer()
            raise self._channel.cancellation_cause(cancellation) from None
        self._check_writer()

    async def close(self) -> None:
        """Cancel the call and wait for its writer to end."""
        self._writer.cancel()
        self._call.cancel()
        await self._tasks.wait()
        # A call keeps its connection open while something refers to it, such as a task's traceback.
        del self._call, self._writer

    def _check_writer(self) -> None:
        if self._writer.done() and not self._writer.cancelled():
            self._writer.result()


class Upload:
    """One upload; run it once.

    Args:
        read: yields the messages of the inputs behind those that a receipt names; called once.
        patience: seconds without progress after which an unavailable gateway is given up.

    Attributes:
        failure: the error of reading the inputs, if that has failed.
    """

    def __init__(
        self,
        channel: GatewayChannel,
        upload_id: str,
        read: Callable[[jobs_pb2.UploadReceipt], AsyncGenerator[UploadMessage, None]],
        *,
        patience: float,
        on_progress: Callable[[UploadProgress], None] = lambda _: None,
    ) -> None:
        self._channel = channel
        self._upload_id = upload_id
        self._read = read
        self._patience = patience
        self._on_progress = on_progress
        self._progress = UploadProgress()
        self._receipt = jobs_pb2.UploadReceipt()
        self._messages: asyncio.Queue[UploadMessage | BaseException | None] = asyncio.Queue(
            _READ_AHEAD
        )
        self._reading = TaskBag()
        self._begun = False
        self._exhausted = False
        self.failure: BaseException | None = None
        self._unstored: deque[UploadMessage] = deque()
        self._unstored_bytes = 0
        self._changed = asyncio.Event()
        # Whether the gateway has said, in this call, how much it has stored.
        self._greeted = asyncio.Event()

    async def run(self) -> jobs_pb2.UploadReceipt:
        """Send all inputs that the gateway has not stored yet; return the receipt for all.

        An error of reading the inputs is raised once those before it are stored.
        """
        patience = Patience(self._patience, self._channel.backoff)
        try:
            while True:
                stored, called_at = self._progress.stored, time.monotonic()
                self._greeted.clear()
                try:
                    await self._send()
                except Unavailable as error:
                    progressed = self._progress.stored > stored
                    # The gateway ends calls that wait for inputs for long.
                    waited = self._greeted.is_set() and time.monotonic() - called_at > _WAITED_S
                    if progressed or waited:
                        patience.reset()
                    await patience.wait(error)
                else:
                    if self.failure is not None:
                        raise self.failure
                    return self._receipt
        finally:
            await self._reading.close()

    async def _send(self) -> None:
        self._channel.ensure_open()
        self._changed.clear()
        call = UploadCall(self._channel, self._requests())
        try:
            async for receipt in call:
                self._acknowledge(receipt)
                self._greeted.set()
        finally:
            await call.close()
        if not self._exhausted or self._unstored:
            raise Unavailable(f"{self._channel.target} ended the upload before its last input")

    async def _requests(self) -> AsyncIterator[bytes]:
        yield jobs_pb2.UploadRequest(upload_id=self._upload_id).SerializeToString()
        await self._greeted.wait()
        for message in list(self._unstored):
            yield message.data
        if not self._begun:
            self._begun = True
            self._progress.read = self._progress.stored
            self._reading.start(self._read_ahead(self._receipt))
        while True:
            while self._unstored_bytes >= _WINDOW_BYTES:
                self._changed.clear()
                await self._changed.wait()
            if self._exhausted:
                return
            match await self._messages.get():
                case None | BaseException() as failure:
                    self._exhausted, self.failure = True, failure
                    return
                case message:
                    self._unstored.append(message)
                    self._unstored_bytes += len(message.data)
                    self._count(message)
                    yield message.data

    async def _read_ahead(self, stored: jobs_pb2.UploadReceipt) -> None:
        try:
            async with aclosing(self._read(stored)) as messages:
                async for message in messages:
                    await self._messages.put(message)
        except BaseException as error:
            if is_being_cancelled():
                raise
            await self._messages.put(error)
        else:
            await self._messages.put(None)

    def _count(self, message: UploadMessage) -> None:
        progress = self._progress
        progress.read += message.count
        progress.size += len(message.data)
        progress.unusable += len(message.unusable)
        progress.new = message.unusable
        self._on_progress(progress)
        progress.new = ()

    def _acknowledge(self, receipt: jobs_pb2.UploadReceipt) -> None:
        stored = receipt.stored
        if stored < self._progress.stored:
            raise InternalError(
                f"{self._channel.target} has lost inputs of upload {self._upload_id} that it had "
                "stored"
            )
        self._progress.stored, self._receipt = stored, receipt
        while self._unstored and self._unstored[0].first + self._unstored[0].count <= stored:
            self._unstored_bytes -= len(self._unstored.popleft().data)
        self._changed.set()
        self._on_progress(self._progress)


_NAMESPACE: Final = uuid.UUID("5ca1ab1e-0da7-4a11-8e57-5eed0f1a7e57")
"""Of the ids of uploads that follow from idempotency keys."""


def upload_id_for(idempotency_key: str) -> str:
    """Return the id of the upload for a key, so that submitting again continues the upload."""
    return str(uuid.uuid5(_NAMESPACE, idempotency_key))


async def submit_inputs(
    channel: GatewayChannel,
    engine: Engine,
    inputs: JobInputs,
    make_spec: Callable[[int, str], JobSpec],
    *,
    outputs: Sequence[str],
    idempotency_key: str,
    max_input_bytes: int,
    patience: float,
    on_progress: Callable[[UploadProgress], None],
) -> str:
    """Upload inputs, submit a job over them and return its id; see `Client.submit`.

    `make_spec` returns the job's specification for a number of inputs and an upload.
    """
    upload_id = upload_id_for(idempotency_key)
    make_spec(0, upload_id)  # raises for an invalid specification before anything is read
    source = await open_source(inputs, engine, max_input_bytes)
    # A key that follows from the files needs no second look at those that are stored.
    named_by_key = isinstance(source, InputInventory) and source.named_by_key
    try:
        encoder = InputEncoder(engine, outputs, max_input_bytes)
        read = partial(read_messages, source, encoder, compare=not named_by_key)
        upload = Upload(channel, upload_id, read, patience=patience, on_progress=on_progress)
        try:
            receipt = await upload.run()
        except (Conflict, EngineUnusable) as error:
            if error is upload.failure and not isinstance(error, OtherInputs):
                raise  # by the caller's iterable
            # A job uses the upload, and there are more inputs.
            raise IdempotencyConflict(idempotency_key, ["inputs or outputs"]) from error
    finally:
        if isinstance(source, InputInventory) and source is not inputs:
            source.close()
    if not receipt.stored:
        raise InvalidInput(f"there are no inputs for engine {engine.name!r}")
    request = jobs_pb2.SubmitRequest(
        spec=job_spec_to_proto(make_spec(receipt.stored, upload_id)),
        idempotency_key=idempotency_key,
        inputs_digest=receipt.digest if receipt.HasField("digest") else None,
    )
    return (await channel.call(channel.jobs.Submit, request)).id
