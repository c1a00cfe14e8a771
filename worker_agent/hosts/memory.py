"""Resident memory of an agent's engine hosts, and its limit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from synergai.runtime.resources import peak_rss_bytes, rss_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.domain import Session
    from worker_agent.exchange import HeldTensorStore

ENFORCEMENT: Final = "sampled, peak of loads, rlimit"
"""How the limit is enforced, for people."""
_DATA_BYTES: Final = 256 << 20
_DATA_BYTES_PER_THREAD: Final = 16 << 20
"""Address space that a runtime reserves without using it: stacks, and arenas of the allocator.
Measured with one to eight threads, TensorFlow and ONNX Runtime reserve less."""


class CrowdedOut(Unavailable):
    """The host was killed because all hosts together exceeded the limit; alone, it may fit.

    Attributes:
        size_bytes: what it had.
    """

    size_bytes = 0


class TooLarge(EngineUnusable):
    """The host was killed because it alone exceeded the limit."""


class Host(Protocol):
    """A running engine host."""

    session: Session

    @property
    def pid(self) -> int:
        """Process id of the host."""

    @property
    def is_loading(self) -> bool:
        """Whether its engine is still being loaded."""

    def kill(self, reason: str, error: SynergaiError) -> None:
        """Kill the process for a reason; if it is loading, its start raises `error`."""


async def _nothing_to_evict(_size: int) -> bool:
    return False


class HostMemory:
    """All engine hosts of an agent, and the limit of their memory; 0 is none.

    Those that are loading or being inspected are included, and so are tensors that are held.

    Attributes:
        evict_idle: evicts idle sessions until some bytes fit; returns whether they then do.
        enforcing: held while room is made, or a host is killed for want of it.
    """

    def __init__(
        self,
        limit_bytes: int = 0,
        held: HeldTensorStore | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._held = held
        self.evict_idle: Callable[[int], Awaitable[bool]] = _nothing_to_evict
        self.hosts: set[Host] = set()
        self.enforcing = asyncio.Lock()

    async def make_room(self, size: int) -> bool:
        """Evict idle sessions until `size` more bytes fit the limit; return whether they do."""
        async with self.enforcing:
            return await self.evict_idle(size)

    def used_bytes(self) -> int:
        """Return the resident memory of all hosts, and the size of the held tensors."""
        held_bytes = 0 if self._held is None else self._held.used_bytes
        return held_bytes + sum(rss_bytes(host.pid) for host in self.hosts)

    def exceeded(self, size: int = 0) -> bool:
        """Return whether the hosts use more than the limit, or would with `size` more bytes."""
        return bool(self.limit_bytes) and self.used_bytes() + size > self.limit_bytes

    def data_limit_bytes(self, threads: int) -> int:
        """Return the limit of the data segment of one host; 0 for none.

        The kernel enforces it at once, where sampling would be too late.
        """
        if not self.limit_bytes:
            return 0
        return self.limit_bytes + _DATA_BYTES + threads * _DATA_BYTES_PER_THREAD

    def kill_largest(self) -> None:
        """Kill the hosts that exceed the limit alone; if none does, the largest of those that load.

        If none loads either, kill the largest of all.
        """
        sizes = {host: rss_bytes(host.pid) for host in self.hosts}
        oversized = [host for host, size in sizes.items() if size > self.limit_bytes]
        for host in oversized:
            self._kill(host, sizes[host])
        if oversized:
            return
        sizes = {host: sizes[host] for host in sizes if host.is_loading} or sizes
        largest = max(sizes, key=sizes.__getitem__, default=None)
        if largest is not None:
            self._kill(largest, sizes[largest])

    def check_load(self, host: Host) -> None:
        """Kill a host that has exceeded the limit alone since a load began; samples may miss it."""
        if self.limit_bytes and (peak := peak_rss_bytes(host.pid)) > self.limit_bytes:
            raise self._kill(host, peak)

    def check_start(self, host: Host) -> None:
        """Kill a host that has just loaded its engine if all hosts exceed the limit with it."""
        self.check_load(host)
        if self.exceeded():
            raise self._kill(host, rss_bytes(host.pid))

    def _kill(self, host: Host, size: int) -> SynergaiError:
        """Kill a host of this size; return why it cannot be loaded, if that is what it did."""
        used = f"used {size / 1e6:,.0f} MB"
        allowed = f"{self.limit_bytes / 1e6:,.0f} MB that --memory-mb allows"
        error: TooLarge | CrowdedOut
        if size > self.limit_bytes:
            reason = f"{used}, above the {allowed}, and was killed"
            error = TooLarge(f"engine {host.session.engine!r} {reason}")
        else:
            reason = f"{used} while all engines used more than the {allowed}, and was killed"
            error = CrowdedOut(f"engine {host.session.engine!r} {reason}")
            error.size_bytes = size
        host.kill(reason, error)
        self.hosts.discard(host)  # its memory is about to be free
        return error
