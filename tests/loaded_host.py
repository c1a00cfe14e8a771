"""A loaded engine host without a process, for tests of the pool of engine hosts."""

import asyncio

from worker_agent.ipc import Ready


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
