"""What all parts of a gateway share: settings, clock, metrics, and what is closed with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.monitoring.metrics import Metrics
from synergai.runtime.clock import Clock
from synergai.runtime.paths import dictionary_path
from synergai.runtime.tasks import TaskBag
from synergai.wire.unread import UnreadResponses

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.gateway_settings import GatewaySettings


@dataclass(frozen=True)
class Foundation:
    """What all parts share. `tasks` runs their tasks, and closing `stack` closes them."""

    config: GatewaySettings
    stack: AsyncExitStack
    clock: Clock
    metrics: Metrics
    tasks: TaskBag
    unread: UnreadResponses

    @property
    def dictionary(self) -> Path:
        """The dictionary's file."""
        return self.config.dictionary or dictionary_path(self.config.state)


def lay_foundation(config: GatewaySettings, stack: AsyncExitStack) -> Foundation:
    """Return the foundation of a gateway."""
    tasks, unread = TaskBag(), UnreadResponses(config.max_response_bytes)
    metrics = Metrics()
    metrics.add_gauge(
        "unread_response_bytes",
        "Bytes of responses that clients have not read yet.",
        lambda: unread.bytes,
    )
    return Foundation(config, stack, Clock(), metrics, tasks, unread)
