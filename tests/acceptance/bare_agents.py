"""Agents without engines, many of them in one thread."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final, cast

from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.limits import HUB_VERSION
from worker_agent.exchange import Exchange
from worker_agent.hub_client.client import ControlHandler, HubClient
from worker_agent.hub_client.remote import RemoteHub

_MESSAGE_BYTES: Final = 1 << 20


class _Agent:
    """Describes a worker without engines."""

    def __init__(self, number: int) -> None:
        self._id = f"agent-{number}"
        self.exchange = Exchange(0, _MESSAGE_BYTES)

    async def register_message(self) -> hub_pb2.Register:
        return hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=self._id,
            worker_class="none",
            agent_version="0",
            cores=1,
            configurations=[common_pb2.Configuration(threads=1)],
        )

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        return hub_pb2.Heartbeat()


@contextlib.contextmanager
def bare_agents(count: int, hubs: str) -> Iterator[None]:
    """Run agents that know these gateways as long as the context is open."""
    logging.getLogger("worker_agent").setLevel(logging.CRITICAL)  # each retries, and says so
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            agents = [
                group.create_task(
                    HubClient(RemoteHub(hubs, _MESSAGE_BYTES)).run(
                        cast("ControlHandler", _Agent(number))
                    )
                )
                for number in range(count)
            ]
            await stopped.wait()
            for agent in agents:
                agent.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()
