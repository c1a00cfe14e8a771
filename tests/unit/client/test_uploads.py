"""Upload of inputs over calls that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai.client import uploads
from synergai.client.channel import GatewayChannel
from synergai.client.upload_messages import UploadMessage
from synergai.client.uploads import Upload
from synergai.errors import InternalError, SynergaiError, Unavailable
from synergai.v1.jobs_pb2 import Input, UploadReceipt, UploadRequest
from tests.unit.client.test_answers import INPUT_ERRORS

NO_DELAYS = (0.0,) * 1000


class Spool:
    """A gateway's store of one upload, whose calls end as planned.

    Args:
        breaks: number of messages after which each call breaks; later calls do not.
        keeps: number of messages whose inputs each of these calls does not store in the end.
    """

    def __init__(self, breaks: list[tuple[int, int]]) -> None:
        self.breaks = breaks
        self.names: list[str] = []

    def call(self) -> Call:
        return Call(self, *(self.breaks.pop(0) if self.breaks else (10**6, 0)))


class Call:
    def __init__(self, spool: Spool, breaks_after: int, forgets: int) -> None:
        self.spool = spool
        self.left = breaks_after
        self.forgets = forgets
        self.receipts: asyncio.Queue[UploadReceipt | None] = asyncio.Queue()
        self.broken = False

    async def write(self, data: bytes) -> None:
        request = UploadRequest.FromString(data)
        if self.left == 0 or self.broken:
            self.broken = True
            self.receipts.put_nowait(None)
            await asyncio.sleep(0)
            raise asyncio.InvalidStateError
        self.left -= 1
        names = self.spool.names
        assert request.first <= len(names), "a gap"
        # A call that is about to break may lose what it has not acknowledged.
        if self.left >= self.forgets:
            names += [each.name for each in request.inputs[len(names) - request.first :]]
            self.receipts.put_nowait(UploadReceipt(stored=len(names)))
        else:
            self.broken = True
            self.receipts.put_nowait(None)
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        self.receipts.put_nowait(None)

    def cancel(self) -> None:
        self.receipts.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[UploadReceipt]:
        while (receipt := await self.receipts.get()) is not None:
            yield receipt
        if self.broken:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()
            )


def channel_to(
    spool: Spool,
    failure: type[SynergaiError] = Unavailable,
    delays: Sequence[float] = NO_DELAYS,
) -> GatewayChannel:
    channel = SimpleNamespace(
        target="gate:1",
        gateway=0,
        backoff=SimpleNamespace(delays=lambda: iter(delays)),
        upload=spool.call,
        ensure_open=lambda: None,
        to_error=lambda *_: failure("the disk is full"),
        cancellation_cause=lambda cancellation: cancellation,
    )
    return cast("GatewayChannel", channel)


def messages(
    names: list[str], sizes: list[int]
) -> Callable[[UploadReceipt], AsyncGenerator[UploadMessage, None]]:
    """Return a function that yields messages of these sizes from a position on."""

    async def read(stored: UploadReceipt) -> AsyncGenerator[UploadMessage, None]:
        first = stored.stored
        for size in [*sizes, len(names)]:
            part = names[first : first + size]
            if not part:
                return
            inputs = [Input(name=name) for name in part]
            data = UploadRequest(first=first, inputs=inputs).SerializeToString()
            yield UploadMessage(first, len(part), data, ())
            first += len(part)

    return read


def run(
    spool: Spool,
    read: Callable[[UploadReceipt], AsyncGenerator[UploadMessage, None]],
    patience: float = 60.0,
    delays: Sequence[float] = NO_DELAYS,
) -> int:
    channel = channel_to(spool, delays=delays)
    return asyncio.run(Upload(channel, "id", read, patience=patience).run()).stored


@given(
    sizes=st.lists(st.integers(1, 4), max_size=12),
    stored=st.integers(0, 5),
    breaks=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=5),
)
@settings(deadline=None, max_examples=60)
def test_every_input_is_stored_once_and_in_order(
    sizes: list[int], stored: int, breaks: list[tuple[int, int]]
) -> None:
    names = [f"{number}.jpg" for number in range(sum(sizes))]
    spool = Spool(breaks)
    spool.names = names[:stored]
    assert run(spool, messages(names, sizes)) == len(names)
    assert spool.names == names


def test_gateway_that_ends_idle_calls_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def read(_stored: UploadReceipt) -> AsyncGenerator[UploadMessage, None]:
        await asyncio.Event().wait()
        yield UploadMessage(0, 0, b"", ())

    class IdleCall(Call):
        async def write(self, data: bytes) -> None:
            await super().write(data)
            nonlocal now
            now += 61.0
            self.broken = True
            self.receipts.put_nowait(None)

    class IdleSpool(Spool):
        calls = 0

        def call(self) -> Call:
            self.calls += 1
            return IdleCall(self, 10**6, 0) if self.calls < 5 else Call(self, 0, 0)

    monkeypatch.setattr("synergai.client.uploads.time.monotonic", lambda: now)
    spool = IdleSpool([])
    with pytest.raises(Unavailable):
        run(spool, read, patience=90.0, delays=(0.0,) + (100.0,) * 9)
    assert spool.calls == 5  # four that lasted, and one that did not


@pytest.mark.timeout(15)
@pytest.mark.parametrize("error", INPUT_ERRORS, ids=lambda error: type(error).__name__)
def test_error_of_the_inputs_ends_the_upload_once_those_before_it_are_stored(
    error: BaseException,
) -> None:
    async def read(stored: UploadReceipt) -> AsyncGenerator[UploadMessage, None]:
        async for message in messages(["a"], [])(stored):
            yield message
        raise error

    async def upload() -> BaseException | None:
        try:
            await Upload(channel_to(spool), "id", read, patience=60.0).run()
        except BaseException as raised:  # noqa: BLE001 - compared
            return raised
        return None

    spool = Spool([(1, 0)])
    assert asyncio.run(upload()) is error
    assert spool.names == ["a"]


def test_unavailable_gateway_is_given_up_after_the_patience() -> None:
    spool = Spool([(0, 0)] * 1000)
    with pytest.raises(Unavailable):
        run(spool, messages(["a"], []), patience=-1.0)
    assert len(spool.breaks) == 999


def test_gateway_that_has_lost_inputs_is_not_trusted() -> None:
    spool = Spool([(2, 0)])
    call = spool.call

    def forgetful() -> Call:
        spool.names = spool.names[:1]
        return call()

    spool.call = forgetful  # type: ignore[method-assign]  # a test's own spool
    with pytest.raises(InternalError, match="has lost inputs"):
        run(spool, messages([str(n) for n in range(9)], [4]))


def test_window_bounds_what_is_sent_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_WINDOW_BYTES", 1)
    spool = Spool([])
    names = [str(number) for number in range(50)]
    assert run(spool, messages(names, [1] * 50)) == 50
    assert spool.names == names


def test_refusal_of_the_gateway_is_raised() -> None:
    spool = Spool([(1, 0)])
    channel = channel_to(spool, SynergaiError)
    upload = Upload(channel, "id", messages(["a"], []), patience=60.0)
    with pytest.raises(SynergaiError, match="disk is full"):
        asyncio.run(upload.run())
