"""Settings of ``synergai serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from gateway.gateway_settings import GatewaySettings
from synergai.runtime.paths import worker_state
from synergai.runtime.setting_types import POSITIONAL, LogLevel
from synergai.runtime.settings import Settings
from worker_agent.agent_settings import AgentSettings, WorkerSettings


class ServeSettings(Settings, frozen=True, kw_only=True):
    """Settings of a gateway and a worker in one process."""

    env_prefix = "SYNERGAI_SERVE_"
    has_file = True
    panels: ClassVar[dict[str, tuple[str, ...]]] = {
        "Worker": (
            *("worker_id", "worker_class", "labels", "providers", "onnx_operators", "cores"),
            *("memory_mb", "pin", "disk_budget", "power", "power_modes", "peer_port"),
        ),
        **GatewaySettings.panels,
    }

    models: Annotated[Path, POSITIONAL, "Model directory, with one folder per engine."] = Path(
        "models"
    )
    worker: WorkerSettings = msgspec.field(default_factory=WorkerSettings)
    gateway: GatewaySettings = msgspec.field(default_factory=GatewaySettings)

    @property
    def log_level(self) -> LogLevel:
        return self.gateway.log_level

    @property
    def probes(self) -> str | None:
        return self.gateway.probes

    @property
    def agent(self) -> AgentSettings:
        return AgentSettings(
            gateway="",
            worker=self.worker,
            state=worker_state(self.gateway.state),
            drain_s=self.gateway.drain_s,
            tls_cert=self.gateway.tls_cert,
            tls_key=self.gateway.tls_key,
            max_message_bytes=self.gateway.max_message_bytes,
            log_level=self.gateway.log_level,
        )
