"""The power manager, on an emulated board with real processes."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.emulated_board.board import EmulatedBoard
from worker_agent.power import manager, nvpmodel
from worker_agent.power.controller import Reading, SwitchFailed, SwitchResult, SwitchTiming
from worker_agent.power.manager import PowerManager


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = SwitchTiming(settle=0.0, timeout=0.1, interval=0.02)
    monkeypatch.setattr(nvpmodel, "SwitchTiming", lambda: timing)


@pytest.fixture
async def power(agx: EmulatedBoard) -> AsyncIterator[PowerManager]:
    opened = await PowerManager.open(files=agx.files)
    yield opened
    await opened.close()


async def test_a_switch_is_known_when_it_is_over_and_costs_nothing_again(
    power: PowerManager,
) -> None:
    assert await power.ensure("MAXN") > 0
    assert power.mode == "MAXN"
    assert await power.ensure("MAXN") == 0.0
    assert await power.ensure("") == 0.0


async def test_a_switch_does_not_block_the_loop(
    power: PowerManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_ran = threading.Event()
    switch = nvpmodel.NvpmodelController.switch

    def held(controller: nvpmodel.NvpmodelController, mode: str) -> SwitchResult:
        assert loop_ran.wait(30)
        return switch(controller, mode)

    monkeypatch.setattr(nvpmodel.NvpmodelController, "switch", held)
    asyncio.get_running_loop().call_later(0.01, loop_ran.set)
    assert await power.ensure("MAXN") > 0


async def test_a_switch_completes_though_its_caller_is_cancelled(
    power: PowerManager,
) -> None:
    switching = asyncio.ensure_future(power.ensure("MAXN"))
    await asyncio.sleep(0)
    switching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await switching
    assert (await power.refresh()).mode == "MAXN"


async def test_a_switch_by_another_program_is_detected(
    agx: EmulatedBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manager, "POLL_INTERVAL_S", 0.01)
    power = await PowerManager.open(files=agx.files)
    nvpmodel.NvpmodelController(agx.files).switch("MAXN")
    for _ in range(1000):
        if "another program" in caplog.text:
            break
        await asyncio.sleep(0.01)
    assert power.reading == Reading("MAXN")
    assert "another program" in caplog.text
    await power.close()


async def test_each_change_of_mode_is_reported_with_the_duration_of_the_switch(
    agx: EmulatedBoard,
) -> None:
    changes: list[tuple[str, float]] = []
    power = await PowerManager.open(
        files=agx.files, on_change=lambda *change: changes.append(change)
    )
    seconds = await power.ensure("MAXN")
    await power.ensure("MAXN")
    agx.inject_fault("half-cores")
    with pytest.raises(SwitchFailed):
        await power.ensure("MODE_30W_ALL")
    agx.inject_fault("none")
    nvpmodel.NvpmodelController(agx.files).switch("MODE_30W_2CORE")
    await power.refresh()
    await power.close()
    assert changes == [("MODE_15W", 0.0), ("MAXN", seconds), ("", 0.0), ("MODE_30W_2CORE", 0.0)]
