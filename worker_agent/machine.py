"""What this machine offers to its worker: memory, power, devices and configurations."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.runtime.resources import usable_cores
from worker_agent.exchange import Exchange
from worker_agent.hosts.memory import HostMemory
from worker_agent.power.files import MachineFiles
from worker_agent.power.manager import PowerManager
from worker_agent.power.telemetry import PowerMeter
from worker_agent.providers import used_gpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from synergai.domain import Configuration
    from worker_agent.agent_settings import AgentSettings


@dataclass(frozen=True)
class Machine:
    """The memory, power and devices of this machine, and its tensors for other machines.

    Attributes:
        instance: differs between runs of the agent.
        cores: whole cores that engines may use outside of the cgroup of a power mode.
    """

    instance: str
    cores: int
    exchange: Exchange
    memory: HostMemory
    power: PowerManager
    configurations: tuple[Configuration, ...]
    meter: PowerMeter


async def open_machine(
    config: AgentSettings,
    on_power_changed: Callable[[str, float], object],
    stack: AsyncExitStack,
) -> Machine:
    """Find out what the machine offers; closing `stack` closes it."""
    settings = config.worker
    cores = usable_cores(settings.cores)  # before power modes restrict the process
    exchange = await _open_exchange(config)
    stack.push_async_callback(exchange.close)
    files = MachineFiles(settings.root)
    power = await PowerManager.open(settings.power, settings.power_modes, files, on_power_changed)
    stack.push_async_callback(power.close)
    memory = HostMemory(settings.memory_limit_bytes, exchange.held)
    # The mode in force comes last, so that it is preferred among modes of the same speed.
    modes = sorted(power.modes, key=lambda mode: mode.name == power.mode)
    meter = await asyncio.to_thread(PowerMeter, files, gpus=used_gpus(settings.providers))
    stack.push_async_callback(asyncio.to_thread, meter.close)
    return Machine(
        instance=secrets.token_hex(8),
        cores=cores,
        exchange=exchange,
        memory=memory,
        power=power,
        configurations=settings.configurations(modes),
        meter=meter,
    )


async def _open_exchange(config: AgentSettings) -> Exchange:
    """Open the port for other agents, if it is configured, encrypted as the gateway is."""
    settings = config.worker
    if settings.peer_port and config.tls_ca is not None and config.tls_cert is None:
        raise InvalidInput(
            "--peer-port needs --tls-cert and --tls-key with --tls-ca: other agents connect to it "
            "by TLS"
        )
    exchange = Exchange(settings.memory_limit_bytes, config.max_message_bytes)
    if settings.peer_port:
        await exchange.open(settings.peer_port, config.tls_cert, config.tls_key)
    return exchange
