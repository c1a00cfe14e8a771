"""Quotas: what each tenant may use of the gateway at a time and per second.

A quota limits a tenant; the limits of `gateway.admission.limits` protect the gateway as a whole.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from gateway.admission.token_bucket import TokenBucket
from gateway.monitoring.tenant_metrics import TenantLabels
from synergai.errors import Overloaded, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

    from gateway.access.table import Quota

MAX_TENANTS: Final = 10_000
"""Tenants whose usage is tracked at a time. Clients may be allowed to choose the names."""
PROMPT_REFUSALS_PER_S: Final = 50.0
"""Refusals of a tenant that are sent at once; further ones are delayed."""
REFUSAL_DELAY_S: Final = 0.25
"""Delay of these: the one that clients are told by default."""
_SWEEP_FROM: Final = 64
_SWEEP_EVERY_S: Final = 1.0


class QuotaTable(Protocol):
    """The quotas of all tenants; the access table is one."""

    def quota_of(self, tenant: str) -> Quota:
        """Return the quota of a tenant; empty is the default tenant."""


class Clock(Protocol):
    """Source of time."""

    def now(self) -> float:
        """Return monotonic seconds."""


class TenantUsage:
    """What one tenant uses, and its quota.

    Args:
        tenant: its name; empty is the default tenant.
        quota: its quota.
        now: current time in monotonic seconds.
        on_rejection: called with every refusal.

    Attributes:
        tenant: its name; empty is the default tenant.
        quota: its current quota.
        in_flight: accepted requests that have not ended.
        streams: open streams.
        jobs: unfinished jobs.
        stored_bytes: bytes of uploads and results.
        connections: open calls by connection.
    """

    __slots__ = (
        "_bytes",
        "_on_rejection",
        "_refusals",
        "_requests",
        "connections",
        "in_flight",
        "jobs",
        "quota",
        "stored_bytes",
        "streams",
        "tenant",
    )

    def __init__(
        self, tenant: str, quota: Quota, now: float, on_rejection: Callable[[QuotaExceeded], None]
    ) -> None:
        self.tenant = tenant
        self._on_rejection = on_rejection
        self.quota = quota
        self.in_flight = self.streams = self.jobs = self.stored_bytes = 0
        self.connections: dict[str, int] = {}
        self._requests = _bucket(None, quota.requests_per_s, now)
        self._bytes = _bucket(None, quota.bytes_per_s, now)
        self._refusals = TokenBucket(PROMPT_REFUSALS_PER_S, now)

    def change_quota(self, quota: Quota, now: float) -> None:
        """Apply other limits; what is in use stays in use."""
        self.quota = quota
        self._requests = _bucket(self._requests, quota.requests_per_s, now)
        self._bytes = _bucket(self._bytes, quota.bytes_per_s, now)

    def start_request(self, size_bytes: int, now: float, *, charged: bool = False) -> None:
        """Count a request.

        Args:
            size_bytes: size of its message.
            now: current time in monotonic seconds.
            charged: it has been counted before, and does not count towards the rates again.

        Raises:
            QuotaExceeded: there is no room for it.
        """
        quota = self.quota
        self._check("requests_in_flight", self.in_flight, quota.requests_in_flight, now)
        if not charged:
            self._check_rates(size_bytes, now)
            self.charge(size_bytes, now)
        self.in_flight += 1

    def end_request(self) -> None:
        """Free the room of a request."""
        self.in_flight -= 1

    def wait_s(self, size_bytes: int, now: float) -> float:
        """Return the seconds until the rates allow a message of this size; 0 if they do now."""
        requests, data = self._requests, self._bytes
        return max(
            0.0 if requests is None else requests.wait_s(1.0, now),
            0.0 if data is None else data.wait_s(size_bytes, now),
        )

    def charge(self, size_bytes: int, now: float) -> None:
        """Count a message towards the rates; `wait_s` must have returned 0 for it."""
        if self._requests is not None:
            self._requests.take(1.0, now)
        if self._bytes is not None:
            self._bytes.take(size_bytes, now)

    def start_stream(self, now: float) -> None:
        """Count a stream.

        Raises:
            QuotaExceeded: there is no room for it.
        """
        self._check("streams", self.streams, self.quota.streams, now)
        self.streams += 1

    def end_stream(self) -> None:
        """Free the room of a stream."""
        self.streams -= 1

    def start_call(self, connection: str, now: float) -> None:
        """Count a call on a connection.

        Raises:
            QuotaExceeded: it is on a further connection, for which there is no room.
        """
        calls = self.connections.get(connection, 0)
        if not calls:
            self._check("connections", len(self.connections), self.quota.connections, now)
        self.connections[connection] = calls + 1

    def end_call(self, connection: str) -> None:
        """Free the room of a call, and with the last one that of its connection."""
        self.connections[connection] -= 1
        if not self.connections[connection]:
            del self.connections[connection]

    def start_job(self, queries: int, now: float) -> None:
        """Count a job.

        Raises:
            QuotaExceeded: it has too many queries, or there is no room for it.
        """
        if self.quota.queries_per_job is not None and queries > self.quota.queries_per_job:
            self._refuse("queries_per_job", self.quota.queries_per_job, now, asked=queries)
        self._check("unfinished_jobs", self.jobs, self.quota.unfinished_jobs, now)
        self.jobs += 1

    def end_job(self) -> None:
        """Free the room of a job."""
        self.jobs -= 1

    def store(self, used: int, added: int, now: float) -> None:
        """Count stored bytes.

        Args:
            used: what is stored.
            added: what is to be stored in addition; 0 only counts.
            now: current time in monotonic seconds.

        Raises:
            QuotaExceeded: there is no room for it.
        """
        self.stored_bytes = used
        limit = self.quota.stored_bytes
        if added and limit is not None and used + added > limit:
            self._refuse("stored_bytes", limit, now, asked=added if added > limit else None)

    def is_idle(self, now: float) -> bool:
        """Return whether nothing would be lost by forgetting the usage."""
        return not (
            self.in_flight
            or self.streams
            or self.jobs
            or self.connections
            or self._refusals.used(now) > 0
            or (self._requests is not None and self._requests.used(now) > 0)
            or (self._bytes is not None and self._bytes.used(now) > 0)
        )

    def figures(self, now: float) -> Iterator[tuple[str, float, float]]:
        """Yield name, usage and limit of each quota that has a limit."""
        quota = self.quota
        for name, used, limit in (
            ("requests_per_s", self._requests and self._requests.used(now), quota.requests_per_s),
            ("bytes_per_s", self._bytes and self._bytes.used(now), quota.bytes_per_s),
            ("requests_in_flight", self.in_flight, quota.requests_in_flight),
            ("streams", self.streams, quota.streams),
            ("connections", len(self.connections), quota.connections),
            ("unfinished_jobs", self.jobs, quota.unfinished_jobs),
            ("stored_bytes", self.stored_bytes, quota.stored_bytes),
        ):
            if limit is not None:
                yield name, float(used or 0.0), float(limit)

    def _check_rates(self, size_bytes: int, now: float) -> None:
        if self._requests is not None and (wait_s := self._requests.wait_s(1.0, now)):
            self._refuse("requests_per_s", self.quota.requests_per_s, now, wait_s)
        if self._bytes is not None and (wait_s := self._bytes.wait_s(size_bytes, now)):
            self._refuse("bytes_per_s", self.quota.bytes_per_s, now, wait_s)

    def _check(self, name: str, used: int, limit: int | None, now: float) -> None:
        if limit is not None and used >= limit:
            self._refuse(name, limit, now)

    def _refuse(
        self,
        name: str,
        limit: float | None,
        now: float,
        retry_after_s: float | None = None,
        *,
        asked: int | None = None,
    ) -> NoReturn:
        delay_s = REFUSAL_DELAY_S
        if not self._refusals.wait_s(1.0, now):
            self._refusals.take(1.0, now)
            delay_s = 0.0
        error = QuotaExceeded(
            self.tenant, name, limit or 0, retry_after_s, delay_s=delay_s, asked=asked
        )
        self._on_rejection(error)
        raise error


class TenantQuotas:
    """The usage of all tenants.

    Without a table there are no quotas, and nothing is tracked. Tenants are forgotten while they
    use nothing.

    Args:
        clock: source of time.
        table: the quotas; None for none.
        max_tenants: tenants tracked at a time; further ones are refused.

    Attributes:
        rejections: number of rejections by tenant's label and quota.
    """

    def __init__(
        self, clock: Clock, table: QuotaTable | None = None, *, max_tenants: int = MAX_TENANTS
    ) -> None:
        self._clock = clock
        self._table = table
        self._max_tenants = max_tenants
        self._usages: dict[str, TenantUsage] = {}
        self._sweep_at = min(_SWEEP_FROM, max_tenants)
        self._swept_at = -math.inf
        self.labels = TenantLabels()
        self.rejections: dict[tuple[str, str], int] = {}

    @property
    def distinguishes_tenants(self) -> bool:
        """Whether there is a table, so that callers can be of different tenants."""
        return self._table is not None

    def use_table(self, table: QuotaTable) -> None:
        """Apply the quotas of another table at once; what is in use stays in use."""
        self._table = table
        now = self._clock.now()
        for usage in self._usages.values():
            usage.change_quota(table.quota_of(usage.tenant), now)

    def start_request(
        self, tenant: str, size_bytes: int, *, charged: bool = False
    ) -> TenantUsage | None:
        """Count a request; return the usage on which to end it, or None if it has no limit.

        Args:
            tenant: its tenant.
            size_bytes: size of its message.
            charged: it has been counted before, and does not count towards the rates again.

        Raises:
            QuotaExceeded: there is no room for it.
            Overloaded: too many tenants are active.
        """
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
        """Count a job; return the usage on which to end it, or None without quotas.

        Raises:
            QuotaExceeded: it has too many queries, or there is no room for it.
            Overloaded: too many tenants are active.
        """
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
        """Count the bytes that a tenant stores.

        Args:
            tenant: the tenant.
            used: what is stored.
            added: what is to be stored in addition; 0 only counts.

        Raises:
            QuotaExceeded: there is no room for it.
            Overloaded: too many tenants are active.
        """
        usage = self._usage_of(tenant)
        if usage is not None:
            usage.store(used, added, self._clock.now())

    @contextmanager
    def call(self, tenant: str, connection: str, *, stream: bool = False) -> Iterator[None]:
        """Count a call while the context is open.

        Args:
            tenant: the caller's tenant.
            connection: address of the connection's other end.
            stream: whether it is a stream.

        Raises:
            QuotaExceeded: there is no room for a further connection or stream.
            Overloaded: too many tenants are active.
        """
        usage = self._usage_of(tenant)
        if usage is None:
            yield
            return
        now = self._clock.now()
        usage.start_call(connection, now)
        try:
            if stream:
                usage.start_stream(now)
            try:
                yield
            finally:
                if stream:
                    usage.end_stream()
        finally:
            usage.end_call(connection)

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


def _bucket(bucket: TokenBucket | None, rate: float | None, now: float) -> TokenBucket | None:
    """Return a bucket for a rate, which goes on from an earlier one."""
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, now)
    bucket.change_rate(rate, now)
    return bucket
