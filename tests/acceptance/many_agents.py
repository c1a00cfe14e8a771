"""Let many agents move at once to the gateway that takes over.

    python tests/acceptance/many_agents.py --agents 200 --takeovers 5

Two gateways share a database. The agents, which have no engines, run in this process; each knows
both gateways. The leader is killed again and again.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Final, cast

from synergai.domain import EngineName
from synergai.protocol.hub import HUB_VERSION
from synergai.v1 import common_pb2, hub_pb2
from tests.acceptance.scripts import verdict
from tests.acceptance.takeovers import AGENTS_S, Member, wait
from tests.postgresql import find_programs, running_server
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.client import HubClient
from worker_agent.hub_client.registration import ControlHandler
from worker_agent.hub_client.remote import RemoteHub
from worker_agent.runner.runner import Runner

_MESSAGE_BYTES: Final = 1 << 20


class Agent:
    """Describes a worker without engines."""

    def __init__(self, number: int) -> None:
        self._id = f"agent-{number}"

    def register_message(self) -> hub_pb2.Register:
        return hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=self._id,
            worker_class="none",
            agent_version="0",
            cores=1,
            configurations=[common_pb2.Configuration(threads=1)],
        )

    def read_input(self, engine: EngineName, url: str) -> bytes:
        raise NotImplementedError

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        return hub_pb2.Heartbeat()


async def run(agents: int, takeovers: int, directory: Path) -> list[str]:
    """Kill the leader again and again; return the errors."""
    programs = find_programs()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed: neither pg_ctl nor /usr/lib/postgresql")
    errors: list[str] = []
    (directory / "shared").mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(programs))
        members = [Member(directory / name, directory / "shared", server) for name in "ab"]
        for member in members:
            stack.callback(member.stop)
        leader, standby = members
        leader.start()
        await asyncio.to_thread(leader.wait_for, "leads")
        standby.start()
        await asyncio.to_thread(standby.wait_for, "standby")
        hubs = ",".join(member.fleet.hub_address for member in members)
        running = [
            asyncio.create_task(
                HubClient(
                    RemoteHub(hubs, _MESSAGE_BYTES),
                    cast("ControlHandler", Agent(number)),
                    Runner(cast("PowerModeHosts", None), {}, lambda: 0.0),
                    [],
                ).run()
            )
            for number in range(agents)
        ]

        async def registered(member: Member) -> float:
            fault = f"fewer than {agents} agents are registered"
            return await asyncio.to_thread(wait, lambda: member.workers() == agents, fault)

        print(f"all registered after {await registered(leader):.2f} s")
        for number in range(takeovers):
            leader.process.kill()
            led_s = await asyncio.to_thread(standby.wait_for, "leads")
            agents_s = await registered(standby)
            print(
                f"{number + 1}: leader after {led_s:.2f} s, agents after further {agents_s:.2f} s"
            )
            if agents_s > AGENTS_S:
                errors.append(f"agents needed {agents_s:.1f} s")
            leader.process.wait()
            leader.start()
            await asyncio.to_thread(leader.wait_for, "standby")
            leader, standby = standby, leader
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    return errors


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--takeovers", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(run(options.agents, options.takeovers, Path(directory)))
    return verdict(found, f"{options.takeovers} takeovers with {options.agents} agents: ")


if __name__ == "__main__":
    sys.exit(main())
