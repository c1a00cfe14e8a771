"""Admission: what requests and jobs may use of the gateway, all together and by tenant.

Limits protect the gateway as a whole. Quotas limit each tenant, at a time and per second.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, NoReturn

from gateway.monitoring.counts import TenantLabels
from synergai.errors import Overloaded, QuotaExceeded, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.entry.access.table import AccessTable, Quota
    from synergai.runtime.clock import Clock


class TenantUsage:
    """Usage of one tenant, and its quota."""

    def __init__(
        self, tenant: str, quota: Quota, now: float, on_rejection: Callable[[QuotaExceeded], None]
    ) -> None:
        self.tenant = tenant
        self._on_rejection = on_rejection
        self.in_flight = self.jobs = 0
        self._rates: dict[str, TokenBucket] = {}
        self.change_quota(quota, now)

    def change_quota(self, quota: Quota, now: float) -> None:
        """Apply other limits; current usage is kept."""
        self.quota = quota
        rates = {"requests_per_s": quota.requests_per_s, "bytes_per_s": quota.bytes_per_s}
        self._rates = {
            name: _bucket(self._rates.get(name), rate, now)
            for name, rate in rates.items()
            if rate is not None
        }

    def start_request(self, size_bytes: int, now: float, *, charged: bool = False) -> None:
        """Count a request, towards the rates only if it was not charged before."""
        quota = self.quota
        self._check("requests_in_flight", self.in_flight, quota.requests_in_flight)
        if not charged:
            self._take_rates(size_bytes, now)
        self.in_flight += 1

    def end_request(self) -> None:
        self.in_flight -= 1

    def start_job(self, queries: int) -> None:
        if self.quota.queries_per_job is not None and queries > self.quota.queries_per_job:
            self._refuse("queries_per_job", self.quota.queries_per_job, asked=queries)
        self._check("unfinished_jobs", self.jobs, self.quota.unfinished_jobs)
        self.jobs += 1

    def end_job(self) -> None:
        self.jobs -= 1

    def check_stored(self, used: int, added: int) -> None:
        """Check that bytes may be stored in addition to those that are."""
        limit = self.quota.stored_bytes
        if limit is not None and used + added > limit:
            self._refuse("stored_bytes", limit, asked=added if added > limit else None)

    def is_idle(self, now: float) -> bool:
        """Return whether nothing would be lost by forgetting the usage."""
        return not (
            self.in_flight
            or self.jobs
            or any(bucket.used(now) > 0 for bucket in self._rates.values())
        )

    def _take_rates(self, size_bytes: int, now: float) -> None:
        costs = {"requests_per_s": 1.0, "bytes_per_s": float(size_bytes)}
        for name, bucket in self._rates.items():
            if wait_s := bucket.wait_s(costs[name], now):
                self._refuse(name, bucket.rate, wait_s)
        for name, bucket in self._rates.items():
            bucket.take(costs[name], now)

    def _check(self, name: str, used: int, limit: int | None) -> None:
        if limit is not None and used >= limit:
            self._refuse(name, limit)

    def _refuse(
        self,
        name: str,
        limit: float | None,
        retry_after_s: float | None = None,
        *,
        asked: int | None = None,
    ) -> NoReturn:
        error = QuotaExceeded(self.tenant, name, limit or 0, retry_after_s, asked=asked)
        self._on_rejection(error)
        raise error


def _bucket(bucket: TokenBucket | None, rate: float, now: float) -> TokenBucket:
    if bucket is None:
        return TokenBucket(rate, now)
    bucket.change_rate(rate, now)
    return bucket


class TokenBucket:
    """Limit on a rate. Time is passed in, in monotonic seconds.

    The bucket fills at `rate` and holds what arrives in a second, but at least one token. Something
    that costs more than a full bucket passes when the bucket is full, and leaves a debt that has
    to be filled before anything else passes: it is late, but not refused for ever.
    """

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.capacity = max(rate, 1.0)
        self._level = self.capacity
        self._at = now

    def wait_s(self, cost: float, now: float) -> float:
        """Return the seconds until `cost` may be taken; 0 if it may now."""
        missing = min(cost, self.capacity) - self._filled(now)
        return missing / self.rate if missing > 0 else 0.0

    def take(self, cost: float, now: float) -> None:
        """Take `cost`, for which `wait_s` must have returned 0."""
        self._level = self._filled(now) - cost
        self._at = now

    def used(self, now: float) -> float:
        """Return the tokens that are missing from a full bucket."""
        return self.capacity - self._filled(now)

    def change_rate(self, rate: float, now: float) -> None:
        """Fill at another rate from now on; what was taken stays taken."""
        used = self.used(now)
        self.rate = rate
        self.capacity = max(rate, 1.0)
        self._level = self.capacity - used
        self._at = now

    def _filled(self, now: float) -> float:
        return min(self.capacity, self._level + (now - self._at) * self.rate)


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
        self.requests -= 1
        self.bytes -= size_bytes
        if not self.requests:
            self._idle.set()

    def close(self) -> None:
        """Refuse new work from now on."""
        self.open = False

    async def wait_idle(self) -> None:
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
            usage.start_job(queries)
        return usage

    def restore_job(self, tenant: str) -> TenantUsage | None:
        """Count a job that was accepted before the gateway's start, even beyond its quota."""
        if self._table is None:
            return None
        usage = self._usages.get(tenant) or self._create(tenant, self._table.quota_of(tenant))
        usage.jobs += 1
        return usage

    def check_stored(self, tenant: str, used: int, added: int) -> None:
        """Check that a tenant may store bytes in addition to those that it does."""
        usage = self._usage_of(tenant)
        if usage is not None:
            usage.check_stored(used, added)

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
