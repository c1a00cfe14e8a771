"""The power mode from the event loop, on an emulated board with its real processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from synergai.errors import InvalidInput
from worker_agent.power import manager, nvpmodel
from worker_agent.power.controller import Reading, SwitchFailed
from worker_agent.power.manager import Power
from worker_agent.power.switching import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from worker_agent.emulated_board.board import EmulatedBoard


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(settle=0.0, limit=0.1, pause=0.02)
    monkeypatch.setattr(nvpmodel, "Patience", lambda: patience)


@pytest.fixture
async def power(agx: EmulatedBoard) -> AsyncIterator[Power]:
    opened = await Power.open(files=agx.files)
    yield opened
    await opened.close()


async def test_a_board_is_recognised_and_offers_what_can_be_switched_to(power: Power) -> None:
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


async def test_a_switch_is_known_when_it_is_over_and_costs_nothing_again(power: Power) -> None:
    assert await power.ensure("MAXN") > 0
    assert power.mode == "MAXN"
    assert await power.ensure("MAXN") == 0.0
    assert await power.ensure("") == 0.0


async def test_after_a_failure_the_mode_is_what_was_read_back(
    power: Power, agx: EmulatedBoard
) -> None:
    agx.fail("half-cores")
    with pytest.raises(SwitchFailed) as failed:
        await power.ensure("MAXN")
    assert power.reading == failed.value.reading
    assert power.mode == ""


async def test_the_loop_runs_on_while_the_board_switches(power: Power) -> None:
    switching = asyncio.ensure_future(power.ensure("MAXN"))
    turns = 0
    while not switching.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 10


async def test_a_switch_is_carried_through_though_nobody_waits_for_it_any_more(
    power: Power,
) -> None:
    switching = asyncio.ensure_future(power.ensure("MAXN"))
    await asyncio.sleep(0)
    switching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await switching
    assert (await power.look()).mode == "MAXN"


async def test_a_switch_by_somebody_else_is_noticed(
    agx: EmulatedBoard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manager, "LOOK_S", 0.01)
    power = await Power.open(files=agx.files)
    nvpmodel.Nvpmodel(agx.files).switch("MAXN")
    for _ in range(1000):
        if "somebody else" in caplog.text:
            break
        await asyncio.sleep(0.01)
    assert power.reading == Reading("MAXN")
    assert "somebody else" in caplog.text
    await power.close()


async def test_unknown_controllers_and_modes_are_refused_with_what_there_is(
    agx: EmulatedBoard,
) -> None:
    with pytest.raises(InvalidInput, match="cgroup, cpufreq, none, nvpmodel"):
        await Power.open("turbo", files=agx.files)
    with pytest.raises(InvalidInput, match="MODE_30W_ALL"):
        await Power.open(modes=["MODE_99W"], files=agx.files)


async def test_each_mode_that_comes_into_force_is_told_with_what_our_switch_took(
    agx: EmulatedBoard,
) -> None:
    told: list[tuple[str, float]] = []
    power = await Power.open(files=agx.files, when_changed=lambda *change: told.append(change))
    took = await power.ensure("MAXN")
    await power.ensure("MAXN")
    agx.fail("half-cores")
    with pytest.raises(SwitchFailed):
        await power.ensure("MODE_30W_ALL")
    agx.fail("none")
    nvpmodel.Nvpmodel(agx.files).switch("MODE_30W_2CORE")
    await power.look()
    await power.close()
    assert told == [("MODE_15W", 0.0), ("MAXN", took), ("", 0.0), ("MODE_30W_2CORE", 0.0)]
