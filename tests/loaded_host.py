"""Engine hosts without processes, for tests of the pool of engine hosts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from synergai.domain import Session
from synergai.errors import SynergaiError
from tests.waiting import turns, until
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import Ready
from worker_agent.providers import ProviderChoice


class LoadedHost:
    """What the pool asks of a host that has loaded its engine."""

    pid = 0
    is_idle = True
    is_closed = was_suspended = False
    ready = Ready(
        inputs=(),
        outputs=(),
        samples=0,
        backend_start_s=0.0,
        model_load_s=0.0,
        data_preparation_s=0.0,
    )

    def __init__(self) -> None:
        self._idle = asyncio.get_running_loop().create_future()

    def require_open(self) -> None:
        """Do nothing: it accepts runs."""

    def retire(self) -> asyncio.Future[None]:
        """Return a future that completes once the host is closed: until then, it keeps its runs."""
        return self._idle

    async def close(self) -> None:
        """End the runs."""
        if not self._idle.done():
            self._idle.set_result(None)


class LoadingHost:
    """A host that loads until the future of it is done, or until it is killed."""

    pid = 0

    def __init__(self, loaded: asyncio.Future[HostProcess]) -> None:
        self._loaded = loaded

    def suspend(self) -> bool:
        """Do nothing, as `resume` does."""
        return True

    def resume(self) -> None:
        """Do nothing."""

    def kill(self, _reason: str, error: SynergaiError) -> None:
        """Let the load fail."""
        self._loaded.set_exception(error)


class Starts:
    """Stands for `HostProcess.start`; the test ends each start, unless all fail with `error`."""

    def __init__(self, error: SynergaiError | None = None) -> None:
        self.error = error
        self.sessions: list[Session] = []
        self.providers: list[ProviderChoice | None] = []
        self.begun: list[asyncio.Future[HostProcess]] = []
        self.ended = 0
        self.launch = asyncio.Event()
        self.launch.set()

    async def start(
        self,
        _models: Path,
        session: Session,
        *,
        provider: ProviderChoice | None = None,
        on_launched: Callable[[HostProcess], None] = lambda _: None,
        **_: object,
    ) -> HostProcess:
        """Start a host."""
        self.sessions.append(session)
        self.providers.append(provider)
        if self.error is not None:
            raise self.error
        await self.launch.wait()
        host: asyncio.Future[HostProcess] = asyncio.get_running_loop().create_future()
        self.begun.append(host)
        on_launched(cast("HostProcess", LoadingHost(host)))
        try:
            return await host
        finally:
            await turns(5)  # as a process does not exit at once
            self.ended += 1

    async def wait(self, count: int) -> None:
        """Wait until so many hosts were launched."""
        await until(lambda: len(self.begun) == count)

    def complete(self) -> None:
        """Let the last start end."""
        self.begun[-1].set_result(cast("HostProcess", LoadedHost()))
