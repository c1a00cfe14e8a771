"""What all workers of this machine share."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from synergai.runtime.cgroups import usable_cores
from worker_agent.hosts.child import SpareHost
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.provider_offers import Runtimes, find_offers
from worker_agent.peers.exchange import Exchange
from worker_agent.power.files import MachineFiles
from worker_agent.power.manager import PowerManager
from worker_agent.power.telemetry import PowerMeter

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from worker_agent.agent_settings import AgentSettings
    from worker_agent.providers.choice import Offers

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """The memory, power and devices of this machine, and its tensors for other machines.

    Attributes:
        instance: differs between runs of the agent.
        cores: whole cores that the agent may use outside of the cgroup of a power mode.
    """

    instance: str
    cores: int
    exchange: Exchange
    memory: HostMemory
    power: PowerManager
    offers: Offers
    meter: PowerMeter


async def open_machine(
    config: AgentSettings,
    on_power_changed: Callable[[str, float], object],
    stack: AsyncExitStack,
    *,
    spare: bool,
) -> Machine:
    """Find out what the machine offers; closing `stack` closes it.

    Args:
        spare: start an engine host ahead, which the first engine loads into.
    """
    settings = config.worker
    cores = usable_cores(settings.cores)  # before power modes restrict the process
    exchange = await _open_exchange(config)
    stack.push_async_callback(exchange.close)
    files = MachineFiles(settings.root)
    power = await PowerManager.open(settings.power, settings.power_modes, files, on_power_changed)
    stack.push_async_callback(power.close)
    # A spare host starts while this process imports the gateway, in the cgroup of power modes.
    spare_host = await SpareHost.start() if spare and not settings.memory_limit_bytes else None
    memory = HostMemory(settings.memory_limit_bytes, exchange.held, spare_host)
    stack.push_async_callback(memory.close_spare)
    offers = await find_offers(settings.providers, Runtimes(), config.state / "providers")
    for choice in offers.choices:
        _log.info("execution provider %s is offered", choice)
    for refusal in offers.refusals:
        _log.warning("execution provider %s is not offered: %s", refusal.choice, refusal.reason)
    gpus = {int(choice.device) for choice in offers.choices if choice.details.needs_cuda}
    meter = await asyncio.to_thread(PowerMeter, files, gpus=gpus)
    stack.push_async_callback(asyncio.to_thread, meter.close)
    return Machine(secrets.token_hex(8), cores, exchange, memory, power, offers, meter)


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
