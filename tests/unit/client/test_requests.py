"""Descriptions of engines."""

import asyncio

import pytest

from synergai.client.requests import InputConverter
from synergai.domain import Engine
from synergai.errors import Cancelled, DeadlineExceeded, Unavailable
from tests.engines import new_engine
from tests.waiting import turns


class Gateway:
    def __init__(self) -> None:
        self.fetches = 0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def describe(self, name: str, **_: object) -> Engine:
        self.fetches += 1
        await asyncio.shield(self.answer)
        return new_engine(name)


async def test_concurrent_calls_share_one_fetch() -> None:
    gateway = Gateway()
    descriptions = InputConverter(gateway.describe)
    calls = [asyncio.create_task(descriptions._describe("digits", 60.0)) for _ in range(100)]
    await turns()
    gateway.answer.set_result(None)
    assert {engine.name for engine in await asyncio.gather(*calls)} == {"digits"}
    await descriptions._describe("digits", 60.0)
    assert gateway.fetches == 1
    descriptions.forget("digits")
    await descriptions._describe("digits", 60.0)
    assert gateway.fetches == 2


async def test_cancelled_call_leaves_the_fetch_to_the_others() -> None:
    gateway = Gateway()
    descriptions = InputConverter(gateway.describe)
    first, second = (asyncio.create_task(descriptions._describe("digits", 60.0)) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    gateway.answer.set_result(None)
    assert (await second).name == "digits"
    assert gateway.fetches == 1


async def test_failed_fetch_fails_its_callers_and_is_tried_again() -> None:
    gateway = Gateway()
    descriptions = InputConverter(gateway.describe)
    calls = [asyncio.create_task(descriptions._describe("digits", 60.0)) for _ in range(3)]
    await turns()
    gateway.answer.set_exception(Unavailable("the gateway is stopping"))
    assert all(
        isinstance(error, Unavailable)
        for error in await asyncio.gather(*calls, return_exceptions=True)
    )
    gateway.answer = asyncio.get_running_loop().create_future()
    gateway.answer.set_result(None)
    assert (await descriptions._describe("digits", 60.0)).name == "digits"
    assert gateway.fetches == 2


async def test_own_deadline_applies_and_closing_cancels() -> None:
    gateway = Gateway()
    descriptions = InputConverter(gateway.describe)
    with pytest.raises(DeadlineExceeded, match="did not describe engine 'digits' within 0 s"):
        await descriptions._describe("digits", 0.0)
    waiting = asyncio.create_task(descriptions._describe("digits", 60.0))
    await turns()
    await descriptions.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await waiting


async def test_call_that_is_cancelled_while_the_client_closes_stays_cancelled() -> None:
    descriptions = InputConverter(Gateway().describe)
    waiting = asyncio.create_task(descriptions._describe("digits", 60.0))
    await turns()
    waiting.cancel()
    await descriptions.close()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
