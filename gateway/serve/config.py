"""Configuration of a gateway with its own worker."""

from __future__ import annotations

from msgspec import Struct

from gateway.config import GatewayConfig  # noqa: TC001 - msgspec reads the annotations
from worker_agent.config import AgentConfig  # noqa: TC001 - as above


class ServeConfig(Struct, frozen=True, kw_only=True):
    """Configuration of a gateway and of the agent in its process.

    Attributes:
        gateway: configuration of the gateway.
        agent: configuration of the agent.
    """

    gateway: GatewayConfig
    agent: AgentConfig
