"""What an execution provider cannot run leaves the engine's other configurations alone."""

from pathlib import Path

import pytest

from synergai.domain import Configuration, EngineName, Session, UnusableSession
from synergai.errors import ConfigurationUnusable, EngineUnusable, SynergaiError, Unavailable
from synergai.models.directories import ModelDirectories
from tests.loaded_host import Starts
from worker_agent.hosts.loads import LoadCrashed, LoadHung, LoadSuspected
from worker_agent.hosts.memory import CrowdedOut
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.process import HostProcess
from worker_agent.hosts.sessions import SessionChange
from worker_agent.providers import ProviderChoice

DIGITS = EngineName("digits")
ON_CUDA = Session(DIGITS, Configuration(0, "", "CUDA"))
ON_CPU = Session(DIGITS, Configuration(1))
SMALL = Session(DIGITS, Configuration(1, "", "", "small"))
CUDA = ProviderChoice("CUDA", {"device_id": "1"})


class Pool:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, models: Path, error: SynergaiError) -> None:
        self.starts = Starts(error)
        monkeypatch.setattr(HostProcess, "start", self.starts.start)
        self.changes: list[SessionChange] = []
        self.reported: list[EngineName] = []
        self.hosts = HostPool(
            ModelDirectories(models),
            memory_bytes=1 << 30,
            providers={"CUDA": CUDA},
            on_change=self.changes.append,
            on_unusable=self.reported.append,
        )

    async def load(self, session: Session) -> SynergaiError:
        with pytest.raises(SynergaiError) as caught:
            await self.hosts.load(session)
        return caught.value


@pytest.mark.parametrize("kind", [EngineUnusable, LoadHung, LoadCrashed])
async def test_failure_with_a_provider_is_remembered_for_this_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[SynergaiError]
) -> None:
    run = Pool(monkeypatch, tmp_path, kind("no device"))
    for _ in range(2):
        error = await run.load(ON_CUDA)
        assert isinstance(error, ConfigurationUnusable)
        assert str(error) == "no device"
    assert run.starts.providers == [CUDA]  # the second load starts nothing
    assert run.hosts.unusable_sessions() == [UnusableSession(ON_CUDA, "no device")]
    assert run.reported == [DIGITS]
    assert [change.error is not None for change in run.changes] == [True, True]


@pytest.mark.parametrize("kind", [Unavailable, CrowdedOut])
async def test_killed_host_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[SynergaiError]
) -> None:
    run = Pool(monkeypatch, tmp_path, kind("killed"))
    for _ in range(2):
        assert isinstance(await run.load(ON_CUDA), kind)
    assert run.starts.providers == [CUDA, CUDA]
    assert run.hosts.unusable_sessions() == []


async def test_failure_on_the_cpu_is_one_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, EngineUnusable("corrupt"))
    assert not isinstance(await run.load(ON_CPU), ConfigurationUnusable)
    assert run.starts.providers == [None]
    assert run.hosts.unusable_sessions() == []


async def test_suspected_session_is_suspected_until_it_is_loaded_or_its_files_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, LoadSuspected("it died"))
    for _ in range(2):
        assert isinstance(await run.load(SMALL), LoadSuspected)
    assert run.hosts.unusable_sessions() == []
    assert run.hosts._unusable.is_suspected(SMALL)
    run.hosts.retire(DIGITS)
    assert not run.hosts._unusable.is_suspected(SMALL)
    await run.load(SMALL)
    run.starts.error = None
    load = run.hosts.load(SMALL)
    await run.starts.wait(1)
    run.starts.complete()
    await load
    assert not run.hosts._unusable.is_suspected(SMALL)


async def test_changed_files_of_the_engine_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Pool(monkeypatch, tmp_path, EngineUnusable("no device"))
    await run.load(ON_CUDA)
    run.hosts._unusable.suspect(ON_CPU)
    run.hosts.retire(DIGITS)
    assert not run.hosts._unusable.is_suspected(ON_CPU)
    assert run.hosts.unusable_sessions() == []
    assert run.reported == [DIGITS, DIGITS]
    await run.load(ON_CUDA)
    assert run.starts.providers == [CUDA, CUDA]
