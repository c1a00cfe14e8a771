"""Admission: what requests and jobs may use of the gateway, all together and by tenant.

Limits protect the gateway as a whole. Quotas limit each tenant, at a time and per second.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from gateway.entry.admission.tenant_usage import TenantUsage
from gateway.monitoring.counts import TenantLabels
from synergai.errors import Overloaded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.entry.access.table import AccessTable, Quota
    from synergai.errors import QuotaExceeded
    from synergai.runtime.clock import Clock

MAX_TENANTS: Final = 10_000
"""Tenants whose usage is tracked at a time. Clients may be allowed to choose the names."""
_SWEEP_FROM: Final = 64
_SWEEP_EVERY_S: Final = 1.0


class Admission:
    """Requests in flight and the bytes of their inputs, and the usage of all tenants.

    A single request may exceed the limit of bytes. Without a table there are no quotas, and nothing
    is tracked. Tenants are forgotten while they use nothing.
    """

    def __init__(
        self,
        max_requests: int,
        max_bytes: int,
        clock: Clock,
        table: AccessTable | None = None,
        *,
        max_tenants: int = MAX_TENANTS,
    ) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._idle = asyncio.Event()
        self._idle.set()
        self.open = True
        self.requests = 0
        self.bytes = 0
        self._clock = clock
        self._table = table
        self._max_tenants = max_tenants
        self._usages: dict[str, TenantUsage] = {}
        self._sweep_at = min(_SWEEP_FROM, max_tenants)
        self._swept_at = -math.inf
        self.labels = TenantLabels()
        self.rejections: dict[tuple[str, str], int] = {}

    # --- all together -------------------------------------------------------------------

    def check_open(self) -> None:
        """Check that new work is accepted."""
        if not self.open:
            raise Unavailable("the gateway is stopping; try another one, or later")

    def acquire(self, size_bytes: int, *, accepted: bool = False) -> None:
        """Reserve room for a request, or for a part of one that was accepted before."""
        if not accepted:
            self.check_open()
        if self.requests >= self._max_requests:
            raise Overloaded(f"{self.requests:,} requests are in flight, the limit; try later")
        if self.requests and self.bytes + size_bytes > self._max_bytes:
            raise Overloaded(
                f"requests of {self.bytes:,} bytes are in flight, near the limit; try later"
            )
        if not self.requests:
            self._idle.clear()
        self.requests += 1
        self.bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Free the room of a request of this size."""
        self.requests -= 1
        self.bytes -= size_bytes
        if not self.requests:
            self._idle.set()

    def close(self) -> None:
        """Refuse new work from now on."""
        self.open = False

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    # --- tenants ------------------------------------------------------------------------

    @property
    def distinguishes_tenants(self) -> bool:
        """Whether there is a table, so that callers can be of different tenants."""
        return self._table is not None

    def use_table(self, table: AccessTable) -> None:
        """Apply the quotas of another table at once; current usage is kept."""
        self._table = table
        now = self._clock.now()
        for usage in self._usages.values():
            usage.change_quota(table.quota_of(usage.tenant), now)

    def start_request(
        self, tenant: str, size_bytes: int, *, charged: bool = False
    ) -> TenantUsage | None:
        """Count a request; return the usage on which to end it, or None if it has no limit."""
        table = self._table
        if table is None:
            return None
        usage = self._usages.get(tenant)
        if usage is None:
            quota = table.quota_of(tenant)
            if quota.requests_per_s is quota.bytes_per_s is quota.requests_in_flight is None:
                return None
            usage = self._add(tenant, quota)
        usage.start_request(size_bytes, self._clock.now(), charged=charged)
        return usage

    def start_job(self, tenant: str, queries: int) -> TenantUsage | None:
        """Count a job; return the usage on which to end it, or None without quotas."""
        usage = self._usage_of(tenant)
        if usage is not None:
            usage.start_job(queries, self._clock.now())
        return usage

    def restore_job(self, tenant: str) -> TenantUsage | None:
        """Count a job that was accepted before the gateway's start, even beyond its quota."""
        if self._table is None:
            return None
        usage = self._usages.get(tenant) or self._create(tenant, self._table.quota_of(tenant))
        usage.jobs += 1
        return usage

    def store(self, tenant: str, used: int, added: int = 0) -> None:
        """Count the bytes that a tenant stores, and those to store in addition."""
        usage = self._usage_of(tenant)
        if usage is not None:
            usage.store(used, added, self._clock.now())

    @contextmanager
    def call(self, tenant: str, connection: str, *, stream: bool = False) -> Iterator[None]:
        """Count a call while the context is open."""
        usage = self._usage_of(tenant)
        if usage is None:
            yield
            return
        now = self._clock.now()
        with ExitStack() as started:
            usage.start_call(connection, now)
            started.callback(usage.end_call, connection)
            if stream:
                usage.start_stream(now)
                started.callback(usage.end_stream)
            yield

    def usages(self) -> Iterator[TenantUsage]:
        """Return the usage of the tenants that are tracked."""
        return iter(self._usages.values())

    def now(self) -> float:
        """Return the current time of the quotas' clock, in monotonic seconds."""
        return self._clock.now()

    def _usage_of(self, tenant: str) -> TenantUsage | None:
        if self._table is None:
            return None
        return self._usages.get(tenant) or self._add(tenant, self._table.quota_of(tenant))

    def _add(self, tenant: str, quota: Quota) -> TenantUsage:
        if len(self._usages) >= self._sweep_at:
            self._sweep(self._clock.now())
        if len(self._usages) >= self._max_tenants:
            raise Overloaded(f"{self._max_tenants:,} tenants are active, the limit; try later")
        return self._create(tenant, quota)

    def _create(self, tenant: str, quota: Quota) -> TenantUsage:
        usage = TenantUsage(tenant, quota, self._clock.now(), self._count)
        self._usages[tenant] = usage
        return usage

    def _sweep(self, now: float) -> None:
        """Forget the tenants that use nothing; a full table is searched once a second only."""
        if self._sweep_at == self._max_tenants and now - self._swept_at < _SWEEP_EVERY_S:
            return
        self._swept_at = now
        self._usages = {
            tenant: usage for tenant, usage in self._usages.items() if not usage.is_idle(now)
        }
        self._sweep_at = min(max(_SWEEP_FROM, 2 * len(self._usages)), self._max_tenants)

    def _count(self, error: QuotaExceeded) -> None:
        key = self.labels.of(error.tenant), error.quota
        self.rejections[key] = self.rejections.get(key, 0) + 1
