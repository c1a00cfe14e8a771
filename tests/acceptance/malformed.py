"""Send malformed messages to every port; check that nothing dies, leaks or blames itself.

    python tests/acceptance/malformed.py --messages 1000000 --seed 1

The gRPC ports for clients and agents, the work socket, the HTTP port and the own server of an agent
get damaged protobuf messages, hostile tensors, wrong frames and broken connections, a quarter of
them over TLS. Meanwhile honest requests and jobs must be answered correctly. No status may be
UNKNOWN or INTERNAL, no process may die, no log may have a traceback, and memory, descriptors and
threads must return to what they were after the first tenth of the messages.

Messages depend on the seed only, their interleaving does not.
"""

import argparse
import asyncio
import collections
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import numpy as np
import psutil
import uvloop

from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai import Client
from synergai.errors import Cancelled, SynergaiError, Unavailable
from synergai.jobs import JobState
from synergai.wire.credentials import ClientTls
from tests.acceptance import hostile_messages as hostile
from tests.acceptance.hostile_senders import (
    TIMEOUT_S,
    Connections,
    HttpRequests,
    InferenceStreams,
    Lane,
    StreamingCalls,
    Tally,
    Target,
    UnaryCalls,
    WorkSockets,
    exchange,
    open_channels,
    send_all,
)
from tests.acceptance.processes import Usage, find_bugs, fleet_processes, is_alive, usage
from tests.acceptance.scripts import verdict

ENGINE: Final = "onnx_identity"
AGENT: Final = "worker"
TLS: Final = Path(__file__).parents[1] / "integration" / "tls"
WARM_UP: Final = 0.1
"""Share of the messages before the resources are noted, while pools and caches fill."""
SETTLE_S: Final = 60.0
"""Time that resources get to return to what they were."""
ALLOWED_GROWTH: Final = 0.2
SLACK = Usage(rss=16 << 20, descriptors=8, threads=4)
"""Growth that is allowed in any case."""
MIN_HONEST: Final = 5
"""Honest calls that each front must have answered."""


# --- oracle -------------------------------------------------------------------------------


@dataclass(slots=True)
class Observations:
    """What a campaign saw."""

    tally: Tally = field(default_factory=Tally)
    honest: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    before: Mapping[str, Usage] = field(default_factory=dict)
    after: Mapping[str, Usage] = field(default_factory=dict)
    bugs: list[str] = field(default_factory=list)


def grown(before: Usage, after: Usage) -> str:
    """Return which resources grew beyond what is allowed; empty if none did."""
    found = []
    for name in Usage.__slots__:
        was, now, slack = (getattr(each, name) for each in (before, after, SLACK))
        if now > max(was * (1 + ALLOWED_GROWTH), was + slack):
            found.append(f"{name} {was:,} -> {now:,}")
    return ", ".join(found)


def find_errors(seen: Observations) -> list[str]:
    found = [*seen.tally.find_errors(), *seen.wrong[:10], *seen.bugs]
    found += [f"{name} died" for name in seen.dead]
    found += [
        f"{front}: only {number} honest calls were answered"
        for front, number in seen.honest.items()
        if number < MIN_HONEST
    ]
    for name, before in seen.before.items():
        if name in seen.after and (growth := grown(before, seen.after[name])):
            found.append(f"{name} grew: {growth}")
    return found


# --- honest calls -------------------------------------------------------------------------


class Honest:
    """Calls that must be answered correctly while others misbehave."""

    def __init__(self, target: Target, seen: Observations) -> None:
        self._target = target
        self._seen = seen
        self._number = 0
        ca = TLS / "ca.pem" if target.socket_tls is not None else None
        self._client = Client(target.fleet.address, tls_ca=ca)

    async def run(self) -> None:
        tls = "" if self._target.socket_tls is None else "TLS "
        fronts: dict[str, Callable[[], Awaitable[bool]]] = {
            f"{tls}gRPC": lambda: self._infer(self._client),
            f"{tls}REST": self._rest,
            f"{tls}jobs": self._job,
        }
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            async with asyncio.TaskGroup() as group:
                for name, call in fronts.items():
                    self._seen.honest[name] += 0
                    group.create_task(self._repeat(name, call))
                group.create_task(self._sweep())

    async def _repeat(self, front: str, call: Callable[[], Awaitable[bool]]) -> None:
        while True:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    right = await _retried(call)
                if right:
                    self._seen.honest[front] += 1
                else:
                    self._seen.wrong.append(f"{front}: wrong answer to an honest call")
            except (SynergaiError, OSError, TimeoutError, grpc.aio.AioRpcError) as error:
                text = str(error) or type(error).__name__
                self._seen.wrong.append(f"{front}: honest call failed: {text}")
            await asyncio.sleep(0.05)

    async def _infer(self, client: Client) -> bool:
        expected = np.arange(3, dtype=np.float32) + self._next_number()
        result = await client.infer(ENGINE, {"x": expected})
        return any(np.array_equal(value, expected) for value in result.outputs.values())

    async def _rest(self) -> bool:
        number = self._next_number()
        body = (
            f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1], "data": [{number}]}}]}}'
        ).encode()
        head = (
            f"POST /v2/models/{ENGINE}/infer HTTP/1.1\r\nhost: localhost\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        _, answer = await exchange(
            self._target.fleet.http_address,
            head + body,
            random.Random(0),
            self._target.socket_tls,
            wait_s=TIMEOUT_S,
        )
        return b'"data":[%d.0]' % number in answer.replace(b" ", b"")

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    async def _job(self) -> bool:
        job = await self._client.submit(ENGINE, queries=20)
        status = await job.wait()
        return status.state is JobState.SUCCEEDED and status.queries_done == 20

    async def _sweep(self) -> None:
        """Cancel the jobs of attackers, which may have 2**64 queries."""
        while True:
            with contextlib.suppress(SynergaiError):
                states = (JobState.QUEUED, JobState.RUNNING)
                for status in await self._client.jobs(states, limit=1000):
                    if status.spec.engine != ENGINE:
                        with contextlib.suppress(SynergaiError):
                            await self._client.job(status.id).cancel()
            await asyncio.sleep(0.1)


async def _retried(call: Callable[[], Awaitable[bool]]) -> bool:
    """Repeat a call that was lost because an attacker ended the gRPC server, which is replaced."""
    while True:
        try:
            return await call()
        except (Cancelled, Unavailable):
            await asyncio.sleep(0.05)


# --- campaign -----------------------------------------------------------------------------


def build_lanes(
    target: Target, seen: Tally, prefix: str, channels: list[grpc.aio.Channel]
) -> list[Lane]:
    """Return the lanes of a campaign; the channels opened for them are added to `channels`."""
    fleet, tls = target.fleet, target.tls

    def opened(address: str, with_tls: ClientTls) -> list[grpc.aio.Channel]:
        new = open_channels(address, with_tls)
        channels.extend(new)
        return new

    clients, hub = opened(fleet.address, tls), opened(fleet.hub_address, tls)
    methods, hub_methods = hostile.CLIENT_METHODS, hostile.HUB_METHODS
    every = (*hub_methods, *methods)
    lanes = [
        Lane(UnaryCalls(f"{prefix}clients, unary", seen, clients, methods), 30, 48),
        Lane(StreamingCalls(f"{prefix}clients, streaming", seen, clients, methods), 12, 24),
        Lane(InferenceStreams(f"{prefix}clients, inference", seen, clients), 24, 3),
        Lane(UnaryCalls(f"{prefix}hub, unary", seen, hub, methods), 2, 8),
        Lane(StreamingCalls(f"{prefix}hub, streaming", seen, hub, every), 6, 16),
        Lane(WorkSockets(f"{prefix}work socket", seen, target), 3, 4),
        Lane(HttpRequests(f"{prefix}HTTP", seen, fleet.http_address, target.socket_tls), 9, 24),
    ]
    addresses = [
        (f"{prefix}clients, frames", fleet.address),
        (f"{prefix}hub, frames", fleet.hub_address),
    ]
    lanes += [
        Lane(Connections(name, seen, address, every, target.http2_tls), 2, 8)
        for name, address in addresses
    ]
    return lanes


async def attack(target: Target, seen: Observations, messages: int, seed: str, name: str) -> None:
    """Send the messages to a fleet, beside honest calls, and compare its resources."""
    channels: list[grpc.aio.Channel] = []
    lanes = build_lanes(target, seen.tally, name, channels)
    honest = asyncio.create_task(Honest(target, seen).run())
    began = time.monotonic()
    try:
        await send_all(lanes, round(messages * WARM_UP), f"{seed}/warm-up")
        await asyncio.sleep(1.0)
        processes = fleet_processes(target.fleet)
        before = usage(processes)
        await send_all(lanes, round(messages * (1 - WARM_UP)), seed)
        elapsed = time.monotonic() - began
        print(
            f"{name or 'plain '}: {messages:,} messages in {elapsed:.0f} s, "
            f"{messages / elapsed:,.0f}/s",
            flush=True,
        )
        after, dead = await settled(processes, before)
    finally:
        honest.cancel()
        await asyncio.wait([honest])
        for channel in channels:
            await channel.close()
    if not honest.cancelled() and (error := honest.exception()) is not None:
        raise error
    seen.dead += [f"{name}{each}" for each in dead]
    seen.before = {**seen.before, **{f"{name}{each}": was for each, was in before.items()}}
    seen.after = {**seen.after, **{f"{name}{each}": now for each, now in after.items()}}


async def settled(
    processes: Mapping[str, psutil.Process], before: Mapping[str, Usage]
) -> tuple[dict[str, Usage], list[str]]:
    """Wait until resources are what they were; return them, and the processes that are gone."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        alive = {name: process for name, process in processes.items() if is_alive(process)}
        after = usage(alive)
        if time.monotonic() > deadline or not any(
            grown(before[name], now) for name, now in after.items()
        ):
            return after, sorted(processes.keys() - alive.keys())
        await asyncio.sleep(0.5)


def start(directory: Path, models: Path, *, encrypted: bool) -> Target:
    fleet = LocalFleet(directory)
    tls, context, http2_context = ClientTls(), None, None
    gateway = ["--reflection", "--log-level", "warning"]
    agent = ["--threads", "1", "--log-level", "warning"]
    if encrypted:
        certificate, key, ca = (str(TLS / name) for name in ("server.pem", "server.key", "ca.pem"))
        gateway += ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", ca]
        agent += ["--tls-ca", ca, "--tls-cert", str(TLS / "agent.pem")]
        agent += ["--tls-key", str(TLS / "agent.key")]
        tls, http2 = (
            ClientTls.read(TLS / "ca.pem", TLS / "agent.pem", TLS / "agent.key") for _ in range(2)
        )
        assert http2.socket is not None
        http2.socket.set_alpn_protocols(["h2"])
        context, http2_context = tls.socket, http2.socket
    fleet.start_gateway(gateway)
    fleet.start_agent(AGENT, models=models, options=agent)
    return Target(fleet, tls, context, http2_context)


async def load_engines(target: Target) -> None:
    """Wait for the worker and load both engines, so that no process starts later."""
    ca = TLS / "ca.pem" if target.socket_tls is not None else None
    async with Client(target.fleet.address, tls_ca=ca) as client:
        for engine in (ENGINE, hostile.VICTIM):
            async with asyncio.timeout(60.0):
                while not await client.ready(engine):  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.05)
            await client.load(engine)


async def run(messages: int, seed: int, directory: Path) -> Observations:
    """Run the test on a fleet without TLS and one with it; return what was seen."""
    seen = Observations()
    models = directory / "models"
    build(ENGINE, models)
    shutil.copytree(models / ENGINE, models / hostile.VICTIM)
    for name, share in (("", 0.75), ("TLS ", 0.25)):
        folder = directory / (name.strip() or "plain")
        folder.mkdir()
        target = start(folder, models, encrypted=bool(name))
        try:
            await load_engines(target)
            await attack(target, seen, round(messages * share), f"{seed}", name)
        finally:
            target.fleet.stop()
            seen.bugs += find_bugs(folder)
    return seen


def report(seen: Observations) -> None:
    for row in seen.tally.rows():
        print(row)
    print("honest: " + ", ".join(f"{front} {number:,}" for front, number in seen.honest.items()))
    for name, before in seen.before.items():
        if (after := seen.after.get(name)) is not None:
            print(
                f"{name:22} {before.rss / 1e6:.1f} -> {after.rss / 1e6:.1f} MB, descriptors "
                f"{before.descriptors} -> {after.descriptors}, threads "
                f"{before.threads} -> {after.threads}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep logs in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synergai-malformed-") as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        seen = uvloop.run(run(arguments.messages, arguments.seed, directory))
    report(seen)
    found = find_errors(seen)
    return verdict(found, f"{seen.tally.statuses.total():,} malformed messages: ")


if __name__ == "__main__":
    sys.exit(main())
