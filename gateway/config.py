"""Configuration of a running gateway: its validated settings, without the library that reads them.

See `GatewaySettings` for the fields.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.scheduling.settings import SchedulingSettings  # noqa: TC001 - as above

if TYPE_CHECKING:
    from synergai.runtime.settings import LogLevel
else:
    LogLevel = str

_HUB_OVERHEAD_BYTES: Final = 64 * 1024
"""Bytes that a hub message may add to a client's request."""


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """Configuration of a gateway; see `GatewaySettings`.

    Attributes:
        scheduling: settings of the scheduler.
    """

    listen: str
    hub: str
    work_port: int
    http: str
    state: Path
    store: str
    store_budget: int
    store_rate: int
    dictionary: Path | None
    scheduling: SchedulingSettings
    heartbeat_s: float
    max_message_bytes: int
    max_requests: int
    max_request_bytes: int
    max_response_bytes: int
    max_jobs: int
    kept_jobs: int
    results_kept_s: float
    data_budget: int
    drain_s: float
    tls_cert: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    tls_clients_ca: Path | None
    access: Path | None
    audit_log: Path | None
    http_tls: bool
    insecure: bool
    reflection: bool
    event_log: Path | None
    ready_file: Path | None
    log_level: LogLevel

    @property
    def max_client_bytes(self) -> int:
        """Limit on the messages of clients, which agents get within larger ones."""
        return self.max_message_bytes - _HUB_OVERHEAD_BYTES

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses to listen on, for clients, agents and HTTP."""
        return self.listen, self.hub, self.http
