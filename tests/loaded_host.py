"""A loaded engine host without a process, for tests of the pool of engine hosts."""

import asyncio

from worker_agent.ipc.frames import Ready


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

    def retire(self) -> asyncio.Future[None]:
        """Return a future that never completes: the host keeps its runs."""
        return asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Do nothing."""
