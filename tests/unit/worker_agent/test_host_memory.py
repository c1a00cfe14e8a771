"""Memory of engine hosts: what counts as theirs."""

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

import worker_agent.hosts.memory
import worker_agent.hosts.pool
from synergai.domain import Configuration, EngineName, Session
from synergai.models.directories import ModelDirectories
from tests.loaded_host import LoadedHost
from worker_agent.hosts.memory import HostMemory, TooLarge
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import Ready

ENGINE = EngineName("engine")


def test_host_that_needed_too_much_only_while_it_loaded_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_agent.hosts.memory, "rss_bytes", lambda _: 50)
    monkeypatch.setattr(worker_agent.hosts.memory, "peak_rss_bytes", lambda _: 150)
    host = Mock(session=Session(ENGINE, Configuration(1)))
    with pytest.raises(TooLarge):
        HostMemory(100).check_load(host)
    host.kill.assert_called_once()


def test_memory_of_a_host_that_was_killed_is_not_freed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_agent.hosts.memory, "rss_bytes", lambda _: 60)
    memory = HostMemory(100)
    hosts = [Mock(session=Session(ENGINE, Configuration(1))) for _ in range(2)]
    memory.hosts.update(hosts)
    memory.kill_largest()
    assert not memory.exceeded()
    assert sum(host.kill.call_count for host in hosts) == 1


class GrowingHost(LoadedHost):
    size = 100

    async def load_variant(self, _variant: str) -> Ready:
        self.size += 30
        return self.ready


async def test_size_of_a_variant_is_what_its_load_adds_to_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = GrowingHost()
    monkeypatch.setattr(HostProcess, "start", AsyncMock(return_value=host))
    monkeypatch.setattr(worker_agent.hosts.pool, "rss_bytes", lambda _: host.size)
    hosts = HostPool(ModelDirectories(tmp_path), memory_bytes=1 << 40)
    large, small = (Session(ENGINE, Configuration(1, variant=each)) for each in ("large", "small"))
    for session in (large, small):
        await hosts.load(session)
    assert hosts.session_bytes() == {large: 100, small: 30}
