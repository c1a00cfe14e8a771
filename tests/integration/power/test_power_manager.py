"""The power manager, on an emulated board with real processes."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from synergai.errors import InvalidInput
from tests.emulated_board.board import EmulatedBoard
from worker_agent.power import manager, nvpmodel
from worker_agent.power.controller import Reading, SwitchFailed
from worker_agent.power.manager import PowerManager
from worker_agent.power.switching import SwitchTiming


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = SwitchTiming(settle=0.0, timeout=0.1, interval=0.02)
    monkeypatch.setattr(nvpmodel, "SwitchTiming", lambda: timing)


@pytest.fixture
async def power(agx: EmulatedBoard) -> AsyncIterator[PowerManager]:
    opened = await PowerManager.open(files=agx.files)
    yield opened
    await opened.close()


async def test_a_board_is_recognised_and_offers_what_can_be_switched_to(
    power: PowerManager,
) -> None:
    assert power.mode == "MODE_15W"
    assert {mode.name for mode in power.modes} == {
        "MAXN",
        "MODE_15W",
        "MODE_30W_ALL",
        "MODE_30W_6CORE",
        "MODE_30W_4CORE",
        "MODE_30W_2CORE",
        "MODE_15W_DESKTOP",
    }


async def test_a_switch_is_known_when_it_is_over_and_costs_nothing_again(
    power: PowerManager,
) -> None:
    assert await power.ensure("MAXN") > 0
    assert power.mode == "MAXN"
    assert await power.ensure("MAXN") == 0.0
    assert await power.ensure("") == 0.0


async def test_after_a_failure_the_mode_is_what_was_read_back(
    power: PowerManager, agx: EmulatedBoard
) -> None:
    agx.inject_fault("half-cores")
    with pytest.raises(SwitchFailed) as failed:
        await power.ensure("MAXN")
    assert power.reading == failed.value.reading
    assert power.mode == ""


async def test_a_switch_does_not_block_the_loop(power: PowerManager) -> None:
    switching = asyncio.ensure_future(power.ensure("MAXN"))
    rounds = 0
    while not switching.done():
        await asyncio.sleep(0.001)
        rounds += 1
    assert rounds > 10


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


async def test_errors_for_unknown_controllers_and_modes_list_the_known_ones(
    agx: EmulatedBoard,
) -> None:
    with pytest.raises(InvalidInput, match="cgroup, cpufreq, none, nvpmodel"):
        await PowerManager.open("turbo", files=agx.files)
    with pytest.raises(InvalidInput, match="MODE_30W_ALL"):
        await PowerManager.open(modes=["MODE_99W"], files=agx.files)


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
