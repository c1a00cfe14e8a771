"""Settings of ``synergai serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field

from gateway.serve.config import ServeConfig
from gateway.settings import GatewaySettings
from synergai.runtime.paths import worker_state
from synergai.runtime.settings import POSITIONAL
from worker_agent.config import AgentConfig
from worker_agent.settings import WorkerSettings


class ServeSettings(GatewaySettings, WorkerSettings, env_prefix="SYNERGAI_SERVE_"):
    """Settings of a gateway and a worker in one process."""

    models: Annotated[Path, POSITIONAL] = Field(
        default=Path("models"), description="Model directory, with one folder per engine."
    )

    def to_serve_config(self) -> ServeConfig:
        """Return the configuration of the gateway and of the worker's agent."""
        agent = AgentConfig(
            **msgspec.structs.asdict(self.to_worker_config()),
            gateway="",
            state=worker_state(self.state),
            tls_ca=None,
            tls_cert=None,
            tls_key=None,
            enrolment_token_file=None,
            drain_s=self.drain_s,
            max_message_bytes=self.max_message_bytes,
            ready_file=None,
            log_level=self.log_level,
        )
        return ServeConfig(gateway=self.to_config(), agent=agent)
