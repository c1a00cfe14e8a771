"""Load a fleet for long while everything goes wrong; check jobs, goodput and the gateway's memory.

    python tests/acceptance/fault_soak.py --minutes 30 --seed 1

A gateway and three agents with an emulated engine get requests and jobs of two tenants, at 70 % of
the capacity measured before. Meanwhile agents and engine hosts are killed, connections and streams
are opened in floods and reset, clients read nothing, cancel, and send malformed messages.

The gateway is killed in the first third only. Its memory, descriptors and threads are sampled after
its last start, from five minutes on, or from half of what is left of a shorter run: a gateway that
restarts has a new memory, and a new one fills its pools and caches for a while. Goodput does not
count the seconds around a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import numpy as np
import psutil
import uvloop

from synergai import Client
from synergai.domain import EngineName
from synergai.errors import SynergaiError
from synergai.protocol.tls import ClientTls
from synergai.testing import LocalFleet
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.acceptance import hostile_messages as hostile
from tests.acceptance.crashes import find_errors as find_job_errors
from tests.acceptance.crashes import find_journal_errors
from tests.acceptance.fleets import HOST, KilledFleet
from tests.acceptance.hostile_senders import (
    FORBIDDEN,
    Connections,
    HttpRequests,
    InferenceStreams,
    StreamingCalls,
    Tally,
    Target,
    UnaryCalls,
    WorkSockets,
    open_channels,
)
from tests.acceptance.processes import Usage, find_bugs, usage
from tests.acceptance.scripts import verdict
from tests.calls import raw_stream
from tests.emulated_engines import write_emulated_engines

ENGINE: Final = EngineName("steady")
QUERY_S: Final = 0.02
AGENTS: Final = ("left", "middle", "right")
TENANTS: Final = ("gold", "silver")
LOAD: Final = 0.7
JOB_SHARE: Final = 0.3
"""Of the load; the other queries are single requests."""
JOB_QUERIES: Final = 20
DEADLINE_S: Final = 2.0
CAPACITY_S: Final = 5.0
"""Duration of the measurement of the capacity."""
GATEWAY_KILLS_END: Final = 1 / 3
WARM_UP_S: Final = 300.0
KILL_EVERY_S: Final = 20.0
"""Mean time between kills."""
AFTER_KILL_S: Final = 8.0
"""Time after a restart whose requests do not count: detection, start and backlog."""
BEFORE_KILL_S: Final = DEADLINE_S
"""Requests that arrived this long before a kill may have been running."""
VICTIMS: Final = {**dict.fromkeys(AGENTS, 0.15), HOST: 0.3, "gateway": 0.25}
GOODPUT_SHARE: Final = 0.9
GROWTH_MB_PER_H: Final = 1.0
NOISE_MB: Final = 0.25
"""Growth that is allowed in any case, as 15 minutes have at 1 MB/h."""
SHORT_NOISE_MB: Final = 4.0
"""The same for runs of which less are sampled than of half an hour: they find large leaks only."""
SHORT_H: Final = 0.24
ALLOWED_DESCRIPTORS: Final = 8
ALLOWED_THREADS: Final = 4
MB: Final = 1e6


# --- oracle -------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What the gateway used at a time."""

    at: float
    usage: Usage


class Interval(NamedTuple):
    """An interval of time."""

    begin: float
    end: float


@dataclass(slots=True)
class Requests:
    """Outcomes of the requests of a tenant.

    Attributes:
        sent_at: arrival times of all requests.
        good_at: arrival times of those answered correctly and in time.
        failures: number of the others by reason.
    """

    sent_at: list[float] = field(default_factory=list)
    good_at: list[float] = field(default_factory=list)
    failures: collections.Counter[str] = field(default_factory=collections.Counter)

    def share(self, kills: Sequence[Interval]) -> tuple[int, float]:
        """Return the number of requests outside the intervals, and the share of good ones."""

        def counted(times: Sequence[float]) -> int:
            return sum(not any(k.begin <= at <= k.end for k in kills) for at in times)

        sent = counted(self.sent_at)
        return sent, counted(self.good_at) / sent if sent else 0.0


def memory_slope(samples: Sequence[Sample]) -> float:
    """Return megabytes per hour, as the median slope between samples (Theil-Sen)."""
    # At most two hundred samples: there are as many pairs as the square of their number.
    chosen = samples[:: max(1, len(samples) // 200)]
    return statistics.median(
        (later.usage.rss - earlier.usage.rss) / MB / (later.at - earlier.at) * 3600
        for earlier, later in combinations(chosen, 2)
    )


def find_resource_errors(samples: Sequence[Sample]) -> list[str]:
    """Return an error for each resource of the gateway that grows."""
    if len(samples) < 20:
        return [f"only {len(samples)} samples of the gateway's memory"]
    hours = (samples[-1].at - samples[0].at) / 3600
    noise = NOISE_MB if hours >= SHORT_H else SHORT_NOISE_MB
    limit = max(GROWTH_MB_PER_H, noise / hours)
    found = []
    if (slope := memory_slope(samples)) > limit:
        found.append(f"the gateway grows by {slope:.1f} MB/h, limit {limit:.1f}")
    fifth = len(samples) // 5
    for name, allowed in (("descriptors", ALLOWED_DESCRIPTORS), ("threads", ALLOWED_THREADS)):
        # The minimum: what floods open comes and goes.
        first, last = (
            min(getattr(sample.usage, name) for sample in part)
            for part in (samples[:fifth], samples[-fifth:])
        )
        if last > first + allowed:
            found.append(f"the gateway's {name} grow from {first} to {last}")
    return found


def find_goodput_errors(requests: Mapping[str, Requests], kills: Sequence[Interval]) -> list[str]:
    """Return an error for each tenant whose goodput is too low outside the kills."""
    found = []
    for tenant, outcomes in requests.items():
        sent, share = outcomes.share(kills)
        if share < GOODPUT_SHARE:
            found.append(f"{tenant}: goodput of {sent} requests outside kills is {share:.1%}")
    return found


# --- load ---------------------------------------------------------------------------------


class Load:
    """Requests and jobs of the honest tenants.

    Args:
        address: the gateway's.
        rng: generator of arrivals.

    Attributes:
        requests: outcomes by tenant.
        acknowledged: ids of jobs by idempotency key.
        errors: jobs with two ids.
        cancelled: number of requests that were cancelled on purpose.
    """

    def __init__(self, address: str, rng: random.Random) -> None:
        self._address = address
        self._rng = rng
        self.requests = {tenant: Requests() for tenant in TENANTS}
        self.acknowledged: dict[str, str] = {}
        self.errors: list[str] = []
        self.cancelled = 0
        self._submitted = 0

    async def measure_capacity(self) -> float:
        """Return queries per second in a closed loop."""
        done = 0
        begin = time.monotonic() + CAPACITY_S  # until then, the engine is loaded everywhere
        end = begin + CAPACITY_S
        async with Client(self._address) as client:

            async def loop() -> None:
                nonlocal done
                while time.monotonic() < end:
                    await client.infer(ENGINE, _INPUTS)
                    done += time.monotonic() >= begin

            await asyncio.gather(*(loop() for _ in range(4 * len(AGENTS))))
        return done / CAPACITY_S

    async def run(self, per_s: float, until: float) -> None:
        """Send requests and jobs at random times, in an open loop; wait for all of them."""
        requests_per_s = per_s * (1 - JOB_SHARE)
        jobs_per_s = per_s * JOB_SHARE / JOB_QUERIES
        async with (
            Client(self._address) as client,
            grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel,
            asyncio.TaskGroup() as group,
        ):
            stub: jobs_pb2_grpc.JobsAsyncStub = jobs_pb2_grpc.JobsStub(channel)
            group.create_task(
                self._arrivals(requests_per_s, until, group, lambda: self._request(client))
            )
            group.create_task(
                self._arrivals(jobs_per_s, until, group, lambda: self._submit(stub, until))
            )
            group.create_task(self._arrivals(2.0, until, group, lambda: self._cancel(client)))

    async def wait_for_jobs(self, timeout_s: float) -> list[str]:
        """Wait until all acknowledged jobs have ended; return the errors."""
        found = list(self.errors)
        deadline = time.monotonic() + timeout_s
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub: jobs_pb2_grpc.JobsAsyncStub = jobs_pb2_grpc.JobsStub(channel)
            for key, job_id in self.acknowledged.items():
                while True:
                    try:
                        job = await stub.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=10.0)
                    except grpc.aio.AioRpcError as error:
                        found.append(f"{job_id} ({key}): {error.code().name} {error.details()}")
                        break
                    if job.state >= jobs_pb2.JOB_STATE_SUCCEEDED:
                        found += find_job_errors(job, JOB_QUERIES)
                        break
                    if time.monotonic() > deadline:
                        found.append(f"{job_id} ({key}): stuck")
                        break
                    await asyncio.sleep(0.1)
        return found

    async def _arrivals(
        self,
        per_s: float,
        until: float,
        group: asyncio.TaskGroup,
        start: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        while time.monotonic() < until:
            group.create_task(start())
            await asyncio.sleep(self._rng.expovariate(per_s))

    async def _request(self, client: Client) -> None:
        tenant = self._rng.choice(TENANTS)
        outcomes = self.requests[tenant]
        arrived = time.monotonic()
        outcomes.sent_at.append(arrived)
        try:
            await client.infer(
                ENGINE, _INPUTS, deadline=DEADLINE_S, parameters={"synergai_tenant": tenant}
            )
            late = time.monotonic() - arrived > DEADLINE_S
        except SynergaiError as error:
            outcomes.failures[type(error).__name__] += 1
            return
        if late:
            outcomes.failures["late"] += 1
        else:
            outcomes.good_at.append(arrived)

    async def _submit(self, stub: jobs_pb2_grpc.JobsAsyncStub, until: float) -> None:
        self._submitted += 1
        key = f"soak-{self._submitted}"
        request = jobs_pb2.SubmitRequest(
            spec=jobs_pb2.JobSpec(
                engine=ENGINE, queries=JOB_QUERIES, tenant=self._rng.choice(TENANTS)
            ),
            idempotency_key=key,
        )
        submissions = self._rng.choice((1, 1, 1, 2))
        while submissions:
            try:
                job = await stub.Submit(request, timeout=5.0)
            except grpc.aio.AioRpcError as error:
                if time.monotonic() > until + 60.0:
                    self.errors.append(f"{key} was not accepted: {error.details()}")
                    return
                await asyncio.sleep(0.1)
                continue
            before = self.acknowledged.setdefault(key, job.id)
            if before != job.id:
                self.errors.append(f"{key} was given two jobs: {before} and {job.id}")
            submissions -= 1

    async def _cancel(self, client: Client) -> None:
        """Send a request and cancel it, at any stage."""
        task = asyncio.create_task(_infer(client))
        await asyncio.wait([task], timeout=self._rng.uniform(0.0, 2 * QUERY_S))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        self.cancelled += 1


async def _infer(client: Client) -> None:
    await client.infer(ENGINE, _INPUTS, deadline=DEADLINE_S)


_INPUTS: Final = {"x": np.zeros(1, np.float32)}
_CHANNEL_OPTIONS: Final = [
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


# --- faults -------------------------------------------------------------------------------


class Kills:
    """Kills of a fleet's processes.

    Attributes:
        fleet: the processes.
        killed: kills by victim.
        intervals: the seconds around them.
    """

    def __init__(self, fleet: KilledFleet) -> None:
        self.fleet = fleet
        self.killed: collections.Counter[str] = collections.Counter()
        self.intervals: list[Interval] = []

    async def run(self, rng: random.Random, gateway_until: float, until: float) -> None:
        """Kill and restart; the gateway until an earlier time only."""
        while True:
            await asyncio.sleep(max(KILL_EVERY_S / 2, rng.expovariate(1 / KILL_EVERY_S)))
            if time.monotonic() > until - AFTER_KILL_S:
                return
            (victim,) = rng.choices(list(VICTIMS), list(VICTIMS.values()))
            if not self.killed:
                victim = "gateway"  # once in any case
            elif victim == "gateway" and time.monotonic() > gateway_until:
                victim = rng.choice(AGENTS)
            began = time.monotonic()
            # Starting a gateway blocks until it is ready.
            if await asyncio.to_thread(self.fleet.kill, victim, rng):
                self.killed[victim] += 1
                end = time.monotonic() + AFTER_KILL_S
                self.intervals.append(Interval(began - BEFORE_KILL_S, end))


class Attackers:
    """Floods, malformed messages and slow readers.

    Args:
        fleet: the processes.
        tally: where to count messages.
        seed: seed of their messages.
    """

    def __init__(self, fleet: LocalFleet, tally: Tally, seed: int) -> None:
        self._fleet = fleet
        self._tally = tally
        self._seed = seed
        self._channels: list[grpc.aio.Channel] = []

    async def run(self) -> None:
        """Attack until cancelled."""
        fleet, tally = self._fleet, self._tally
        target = Target(fleet, ClientTls())
        clients = self._opened(fleet.address)
        hub = self._opened(fleet.hub_address)
        methods = hostile.CLIENT_METHODS
        every = (*hostile.HUB_METHODS, *methods)
        floods = [
            (UnaryCalls("clients, unary", tally, clients, methods), 20, 0.5),
            (StreamingCalls("clients, streaming", tally, clients, methods), 10, 0.5),
            (InferenceStreams("clients, inference", tally, clients), 1, 5.0),
            (StreamingCalls("hub, streaming", tally, hub, every), 5, 0.5),
            (WorkSockets("work socket", tally, target), 2, 1.0),
            (HttpRequests("HTTP", tally, fleet.http_address, None), 10, 0.5),
            (Connections("clients, frames", tally, fleet.address, every, None), 50, 2.0),
            (Connections("hub, frames", tally, fleet.hub_address, every, None), 50, 2.0),
        ]

        async def flood(number: int) -> None:
            sender, size, every_s = floods[number]
            rng = random.Random(f"{self._seed}/{number}")
            while True:
                await asyncio.gather(
                    *(sender.send(rng, 50) for _ in range(size)), return_exceptions=True
                )
                await asyncio.sleep(every_s)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(floods)):
                    group.create_task(flood(number))
                group.create_task(self._open_and_reset(clients))
                group.create_task(self._read_slowly(clients))
        finally:
            for channel in self._channels:
                await channel.close()

    def _opened(self, address: str) -> list[grpc.aio.Channel]:
        channels = open_channels(address, ClientTls())
        self._channels += channels
        return channels

    async def _open_and_reset(self, channels: Sequence[grpc.aio.Channel]) -> None:
        """Open streams, a hundred at a time, and cancel them at once."""
        while True:
            calls = [raw_stream(channels[n % len(channels)], _STREAM)() for n in range(100)]
            await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            self._tally.count("clients, streams", "opened and reset", _STREAM, number=len(calls))
            await asyncio.sleep(1.0)

    async def _read_slowly(self, channels: Sequence[grpc.aio.Channel]) -> None:
        """Send requests of an unknown engine over streams whose responses stay unread."""
        message = hostile.hostile_request(random.Random(1))
        message.model_name = hostile.GHOST
        data = message.SerializeToString()
        while True:
            call = raw_stream(channels[0], _STREAM)()
            sent = 0
            with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
                async with asyncio.timeout(5.0):
                    while sent < 5000:
                        await call.write(data)
                        sent += 1
                    await asyncio.sleep(3.0)
            call.cancel()
            self._tally.count("clients, slow readers", "sent", _STREAM, number=sent)
            await asyncio.sleep(1.0)


_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"


# --- run ----------------------------------------------------------------------------------


async def sample_gateway(local: LocalFleet, begin: float, samples: list[Sample]) -> None:
    """Sample the gateway every second from `begin` on, until cancelled."""
    await asyncio.sleep(begin - time.monotonic())
    assert local.gateway is not None
    gateway = psutil.Process(local.gateway.pid)
    while True:
        used = usage({"gateway": gateway})["gateway"]
        samples.append(Sample(time.monotonic(), used))
        await asyncio.sleep(1.0)


async def run(minutes: float, seed: int, directory: Path) -> list[str]:
    """Run the test and print its figures; return the errors."""
    models, dictionary = write_emulated_engines(directory, {ENGINE: QUERY_S})
    quiet = ["--log-level", "warning"]
    kills = Kills(
        KilledFleet(
            directory / "run",
            models,
            AGENTS,
            gateway=["--dictionary", str(dictionary), *quiet],
            options=quiet,
        )
    )
    # A gateway that is killed does not answer.
    tally, samples = Tally(FORBIDDEN - {"no answer"}), list[Sample]()
    with kills.fleet.local as local:
        await asyncio.to_thread(kills.fleet.start)
        load = Load(local.address, random.Random(seed))
        capacity = await load.measure_capacity()
        print(f"capacity: {capacity:.0f} queries/s; load: {LOAD * capacity:.0f}/s", flush=True)
        began = time.monotonic()
        until = began + 60 * minutes
        gateway_until = began + 60 * minutes * GATEWAY_KILLS_END
        # The gateway may start for the last time a little after `gateway_until`.
        rest_s = until - gateway_until
        sample_from = gateway_until + min(WARM_UP_S + 10.0, rest_s / 2)
        others: list[Coroutine[None, None, None]] = [
            kills.run(random.Random(seed), gateway_until, until),
            Attackers(local, tally, seed).run(),
            sample_gateway(local, sample_from, samples),
            print_progress(kills, load, began),
        ]
        tasks = [asyncio.create_task(each) for each in others]
        try:
            await load.run(LOAD * capacity, until)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        found = await load.wait_for_jobs(timeout_s=120.0)
    found += find_journal_errors(
        local.directory / "gateway" / "journal.db", ENGINE, len(load.acknowledged)
    )
    found += [*tally.find_errors(), *find_bugs(local.directory)]
    found += find_goodput_errors(load.requests, kills.intervals) + find_resource_errors(samples)
    report(kills, load, tally, samples)
    return found


async def print_progress(kills: Kills, load: Load, began: float) -> None:
    """Print a line every minute."""
    while True:
        await asyncio.sleep(60.0)
        gateway = kills.fleet.local.gateway
        assert gateway is not None
        rss = psutil.Process(gateway.pid).memory_info().rss
        print(
            f"{time.monotonic() - began:.0f} s: {kills.killed.total()} kills, "
            f"{len(load.acknowledged):,} jobs, gateway {rss / MB:.1f} MB",
            flush=True,
        )


def report(kills: Kills, load: Load, tally: Tally, samples: Sequence[Sample]) -> None:
    """Print the figures."""
    for row in tally.rows():
        print(row)
    killed = ", ".join(f"{victim} {number}" for victim, number in sorted(kills.killed.items()))
    print(f"kills: {killed}; jobs: {len(load.acknowledged):,}; cancelled: {load.cancelled:,}")
    for tenant, outcomes in load.requests.items():
        sent, share = outcomes.share(kills.intervals)
        failures = ", ".join(f"{name} {n:,}" for name, n in sorted(outcomes.failures.items()))
        print(
            f"{tenant}: {len(outcomes.sent_at):,} requests, {sent:,} of them outside kills with a "
            f"goodput of {share:.1%}; in all not in time: {failures or 'none'}"
        )
    if len(samples) > 1:
        report_memory(samples)


def report_memory(samples: Sequence[Sample]) -> None:
    """Print what the gateway used."""
    first, last = samples[0], samples[-1]
    print(
        f"gateway: {memory_slope(samples):+.2f} MB/h over {last.at - first.at:.0f} s, "
        f"{first.usage.rss / MB:.1f} -> {last.usage.rss / MB:.1f} MB, descriptors "
        f"{first.usage.descriptors} -> {last.usage.descriptors}, threads "
        f"{first.usage.threads} -> {last.usage.threads}"
    )


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep logs in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="synergai-soak-") as temporary:
        directory = arguments.directory or Path(temporary)
        found = uvloop.run(run(arguments.minutes, arguments.seed, directory))
    return verdict(found, f"{arguments.minutes:g} minutes: ")


if __name__ == "__main__":
    sys.exit(main())
