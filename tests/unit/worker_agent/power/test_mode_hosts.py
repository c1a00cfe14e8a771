"""Sessions in the power mode of their configuration, on hosts that only record calls."""

import asyncio
from typing import cast

import pytest

from synergai.domain import Configuration, EngineName, Session
from synergai.errors import InvalidInput, Unavailable
from worker_agent.agent_settings import WorkerSettings
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.power.controller import ModeRefused, PowerMode, Reading, SwitchFailed
from worker_agent.power.manager import PowerManager

SLOW = Session(EngineName("digits"), Configuration(2, "slow"))
FAST = Session(EngineName("digits"), Configuration(4, "fast"))
ANY = Session(EngineName("digits"), Configuration(4))
MODES = (PowerMode(name="slow", cores=2), PowerMode(name="fast", cores=4))


class Machine:
    """Records the order of calls to hosts and power modes."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.modes = MODES
        self.mode = "slow"
        self.fails = fails
        self.done: list[str] = []
        self.loaded: list[Session] = []

    async def ensure(self, mode: str) -> float:
        self.done.append(f"switch {mode}")
        if self.fails is not None:
            raise self.fails
        self.mode = mode
        return 1.0

    async def close(self) -> None:
        self.done.append("close")

    def resident_sessions(self) -> list[Session]:
        return list(self.loaded)

    def get_resident(self, session: Session) -> Session | None:
        return session if session in self.loaded else None

    def load(self, session: Session) -> asyncio.Task[None]:
        async def load() -> None:
            self.done.append(f"load {session.configuration}")
            self.loaded.append(session)

        return asyncio.create_task(load())

    def end_preloads(self, _reason: str) -> None:
        self.done.append("end preloads")

    async def unload(self, session: Session) -> bool:
        self.done.append(f"unload {session.configuration}")
        self.loaded.remove(session)
        return True


def hosts_on(machine: Machine) -> PowerModeHosts:
    return PowerModeHosts(cast("HostPool", machine), cast("PowerManager", machine))


async def test_the_machine_is_switched_before_a_session_of_another_mode_is_loaded() -> None:
    machine = Machine()
    hosts = hosts_on(machine)
    await hosts.load(SLOW)
    await hosts.load(FAST)
    assert machine.done == [
        "load threads=2,mode=slow",
        "end preloads",
        "unload threads=2,mode=slow",
        "switch fast",
        "load threads=4,mode=fast",
    ]


async def test_a_configuration_without_a_mode_runs_in_any() -> None:
    machine = Machine()
    hosts = hosts_on(machine)
    await hosts.load(ANY)
    assert machine.done == ["load threads=4"]
    assert hosts.get_resident(ANY) is not None


@pytest.mark.parametrize(
    "failure", [SwitchFailed("core 3 is offline", Reading()), ModeRefused("it needs a reboot")]
)
async def test_an_engine_is_not_blamed_for_a_machine_that_does_not_switch(
    failure: Exception,
) -> None:
    machine = Machine(fails=failure)
    with pytest.raises(Unavailable, match=str(failure)):
        await hosts_on(machine).load(FAST)
    assert machine.loaded == []


async def test_closing_leaves_what_is_being_loaded() -> None:
    machine = Machine()
    hosts = hosts_on(machine)
    task = hosts.load(FAST)
    await hosts.close()
    assert task.cancelled()
    assert machine.done == ["close"]


def test_a_machine_offers_every_mode_with_as_many_threads_as_it_has_cores() -> None:
    assert WorkerSettings().configurations(MODES) == (
        Configuration(1, "slow"),
        Configuration(2, "slow"),
        Configuration(1, "fast"),
        Configuration(2, "fast"),
        Configuration(4, "fast"),
    )
    assert WorkerSettings(threads=(1, 4)).configurations(MODES) == (
        Configuration(1, "slow"),
        Configuration(1, "fast"),
        Configuration(4, "fast"),
    )


def test_threads_that_no_mode_has_cores_for_are_refused() -> None:
    with pytest.raises(InvalidInput, match="cores for 8 threads; the maximum is 4"):
        WorkerSettings(threads=(8,)).configurations(MODES)
