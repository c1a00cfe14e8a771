"""What all workers of this machine share."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.resources import usable_cores
from worker_agent.cpu_affinity import split_places
from worker_agent.exchange import Exchange
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.provider_offers import Runtimes, find_offers
from worker_agent.power.files import MachineFiles
from worker_agent.power.manager import PowerManager
from worker_agent.power.telemetry import PowerMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from synergai.domain import Configuration
    from worker_agent.agent_settings import AgentSettings, WorkerSettings
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers import Offers, ProviderChoice


# Most machines are one worker. Each place, a part of the cores, may be a worker instead, and each
# device that runs alongside the others is one more.


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """A worker of a machine.

    Attributes:
        suffix: of its id, such as ``1`` for the first place; empty if it is the whole machine.
        cores: that its engines are restricted to; all if empty.
        usable_cores: whole cores that it may use.
        memory_bytes: budget of its resident sessions.
    """

    id: str
    suffix: str
    cores: tuple[int, ...]
    usable_cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    providers: tuple[ProviderChoice, ...]


def plan_workers(
    settings: WorkerSettings, cores: int, modes: Sequence[PowerMode], offers: Offers
) -> list[WorkerPlan]:
    """Return the workers of a machine with these usable cores, power modes and providers."""
    beside = [choice for choice in offers.choices if choice.parallel]
    here = tuple(choice for choice in offers.choices if not choice.parallel)
    if modes and (beside or settings.places):
        what, setting = (beside[0], "parallel") if beside else ("a place", "places")
        raise InvalidInput(
            f"{what} cannot run alongside others on a machine with power modes, since a "
            f'switch would disturb them: remove {setting}, or set power = "none"'
        )
    places: list[tuple[int, ...]] = []
    if settings.places:
        available = settings.cores or tuple(sorted(os.sched_getaffinity(0)))
        places = split_places(settings.places, available)
    configurations = settings.configurations(modes, offers)
    on_cores = len(places) or bool(configurations)
    whole = WorkerPlan(
        id=settings.worker_id,
        suffix="",
        cores=settings.cores,
        usable_cores=cores,
        memory_bytes=settings.memory_bytes // (on_cores + len(beside) or 1),
        configurations=configurations,
        providers=here,
    )
    plans = [
        replace(
            _part(whole, str(number)),
            cores=own,
            usable_cores=usable_cores(own),
            configurations=structs.replace(settings, cores=own).configurations(offers=offers),
        )
        for number, own in enumerate(places, 1)
    ]
    if configurations and not places:
        plans.append(whole)
    plans += [
        replace(
            _part(whole, choice.suffix),
            configurations=tuple(choice.configurations(settings.configurations())),
            providers=(choice,),
        )
        for choice in beside
    ]
    if not plans:
        raise InvalidInput(
            "none of the execution providers can be used: "
            + "; ".join(f"{each.choice}: {each.reason}" for each in offers.refusals)
        )
    return plans


def _part(whole: WorkerPlan, suffix: str) -> WorkerPlan:
    name = validate_name(f"{whole.id}.{suffix}", "worker id")
    return replace(whole, id=name, suffix=suffix)


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
