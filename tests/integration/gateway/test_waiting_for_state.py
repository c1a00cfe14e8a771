"""A gateway whose state directory another one still uses, as in a restart."""

import asyncio
import os

import pytest
from msgspec.structs import replace

from gateway.gateway_settings import GatewaySettings
from gateway.journal.files import StateInUse, lock
from gateway.server import Gateway
from tests.waiting import until


async def test_gateway_starts_once_another_one_has_released_its_state(
    config: GatewaySettings, caplog: pytest.LogCaptureFixture
) -> None:
    other = lock(config.state)
    gateway = Gateway(config)
    starting = asyncio.create_task(gateway.__aenter__())
    await until(lambda: "waiting up to 60 s" in caplog.text, pause_s=0.01)
    assert not starting.done()
    os.close(other)
    async with asyncio.timeout(30):
        await starting
    await gateway.__aexit__(None, None, None)
    assert caplog.text.count("waiting up to") == 1


async def test_gateway_does_not_wait_for_ever(config: GatewaySettings) -> None:
    other = lock(config.state)
    with pytest.raises(StateInUse, match="choose another one"):
        await Gateway(replace(config, state_wait_s=0.0)).__aenter__()
    os.close(other)


async def test_gateway_that_waits_can_be_stopped(
    config: GatewaySettings, caplog: pytest.LogCaptureFixture
) -> None:
    other = lock(config.state)
    starting = asyncio.create_task(Gateway(config).__aenter__())
    await until(lambda: "waiting up to" in caplog.text, pause_s=0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    os.close(other)
