"""Deadlines of requests as callers give them, and descriptions of engines."""

import asyncio
from types import SimpleNamespace

import pytest

from synergai.client import requests
from synergai.client.requests import Budget, InputConverter
from synergai.domain import Engine
from synergai.errors import Cancelled, DeadlineExceeded, Unavailable
from tests.engines import new_engine
from tests.waiting import turns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_budget_that_is_used_up_means_no_response_before_the_deadline(
    clock: SimpleNamespace,
) -> None:
    budget = Budget(0.5)
    clock.now += 0.25
    assert budget.left() == 0.25
    clock.now += 0.25
    with pytest.raises(DeadlineExceeded, match=r"^no response before the deadline$"):
        budget.left()


def test_budget_without_a_limit_is_never_used_up() -> None:
    assert Budget(None).left() is None


class Gateway:
    def __init__(self) -> None:
        self.fetches = 0
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def describe(self, name: str) -> Engine:
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
