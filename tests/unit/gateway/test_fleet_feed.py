"""The feed of the fleet page: the state first, then shared changes; slow viewers start again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import pytest

from gateway.calls.http import fleet_page
from gateway.calls.http.fleet_page import MAX_VIEWERS, FleetFeed
from synergai.core.routes.deployment import EngineDeployment
from synergai.domain import EngineName
from synergai.errors import Overloaded
from synergai.fleet_page.page_state import PageState
from tests.staged_runs import staged_run


@pytest.fixture(autouse=True)
def _no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page, "INTERVAL_S", 0.0)
    monkeypatch.setattr(fleet_page, "_STAGGER_S", 0.0)


def make_feed() -> FleetFeed:
    page = PageState()
    for step in staged_run(2, 10):
        page.record(*step)
    deployed = EngineDeployment(engine=EngineName("net"), state="deployed")
    return FleetFeed(page, lambda: (), lambda: [deployed], lambda: 9.0, lambda: None)


async def kind(messages: AsyncGenerator[bytes, None]) -> bytes:
    message = await anext(messages)
    assert message.endswith(b"\n\n")
    return message.split(b"\n")[0]


async def test_state_has_the_deployments_of_engines() -> None:
    async with aclosing(make_feed().messages()) as messages:
        assert b'"kind":"deployment","id":"net","state":"deployed"' in await anext(messages)


async def test_viewers_get_the_state_and_then_share_the_bytes_of_changes() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as one, aclosing(feed.messages()) as other:
        assert (await kind(one), await kind(other)) == 2 * (b"event: state",)
        for _ in range(3):
            changes = await anext(one)
            assert changes.startswith(b"event: changes\n")
            assert await anext(other) is changes


async def test_viewer_that_missed_changes_gets_the_state_again() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as slow, aclosing(feed.messages()) as fast:
        assert await kind(slow) == b"event: state"
        for _ in range(200):
            await anext(fast)
        assert await kind(slow) == b"event: state"
        assert await kind(slow) == b"event: changes"


async def test_viewer_gets_no_state_whose_changes_are_about_to_go() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as first:
        await anext(first)
        for _ in range(fleet_page._KEPT - 2):
            await anext(first)
        async with aclosing(feed.messages()) as late:
            assert await kind(late) == b"event: state"
            for _ in range(5):
                await asyncio.sleep(0)
            assert await kind(late) == b"event: changes"


async def test_large_state_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page, "_PART", 10)
    feed = make_feed()
    async with aclosing(feed.messages()) as messages:
        assert await kind(messages) == b"event: state"
        for _ in range(2):
            assert (await anext(messages)).count(b'"kind"') == 10


async def test_viewers_are_limited() -> None:
    feed = make_feed()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            await anext(await stack.enter_async_context(aclosing(feed.messages())))
        with pytest.raises(Overloaded, match="viewers"):
            await anext(feed.messages())
    async with aclosing(feed.messages()) as messages:
        assert await kind(messages) == b"event: state"


async def test_nothing_is_published_without_viewers() -> None:
    feed = make_feed()
    async with aclosing(feed.messages()) as messages:
        await anext(messages)
    before = len(asyncio.all_tasks())
    published = feed._next
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(asyncio.all_tasks()), feed._next) == (before, published)
