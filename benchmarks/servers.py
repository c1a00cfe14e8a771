"""Who is measured: the yardsticks and ourselves, each in processes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from benchmarks.client import Figure
from synergai.errors import Unavailable
from synergai.models.directory import ModelDirectory
from synergai.testing import LocalFleet, free_port, wait_for_port
from synergai.v1 import jobs_pb2, jobs_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HERE = Path(__file__).parent
AGENT = "agent, asked directly"
GATEWAY = "gateway and agent"
APART = "the same, on cores of their own"
"""The gateway on one core and the engine on another; client and agent go anywhere."""
PLAIN = "plain ONNX Runtime"
THREADS = 1
"""Intra-op threads of every session, so that all do the same arithmetic with the same means."""


@contextlib.contextmanager
def bare(role: str, target: str = "") -> Iterator[str]:
    """Run a bare grpc.aio server, ``echo`` or ``proxy``; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, str(HERE / "bare_grpc.py"), role, address, target])
    try:
        wait_for_port(address)
        yield address
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A gateway and one agent, which is also asked directly.

    Attributes:
        gateway: where clients reach the gateway.
        agent: where clients reach the agent without it.
    """

    gateway: str
    agent: str


@contextlib.contextmanager
def ours(
    folder: Path, models: Path, *, apart: bool = False, dictionary: Path | None = None
) -> Iterator[Ours]:
    """Run a gateway and an agent, with logs and state in `folder`.

    Args:
        folder: is made.
        models: the model directory.
        apart: as `APART` says.
        dictionary: what is known of the engines beforehand, for workers of class ``local``.

    Raises:
        Unavailable: they did not start; with the last that they said.
    """
    listen = f"127.0.0.1:{free_port()}"
    options = ["--listen", listen, "--threads", str(THREADS)]
    prefix: list[str] = []
    if apart:
        first, second, *_ = sorted(os.sched_getaffinity(0))
        prefix = ["taskset", "--cpu-list", str(first)]
        options += ["--cores", str(second)]
    with LocalFleet(folder) as fleet:
        try:
            known = [] if dictionary is None else ["--dictionary", str(dictionary)]
            fleet.start_gateway(known, prefix)
            fleet.start_agent("direct", models=models, options=options)
            fleet.wait_for_workers(1)
            wait_for_port(listen)
        except Unavailable as error:
            # The folder does not outlive the run, so that a name of a log would not help.
            logs = sorted(folder.glob("*.log"))
            said = [line for log in logs for line in log.read_text().splitlines()[-1:]]
            raise Unavailable(f"{error}; the last that was said: {' / '.join(said)}") from error
        yield Ours(gateway=fleet.address, agent=listen)


class Plain:
    """ONNX Runtime alone, in a process that waits while the others are measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def measure(self, seconds: float) -> Figure:
        """Run the model for `seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        median_ms, per_second = map(float, (await self._process.stdout.readline()).split())
        return Figure(median_ms, per_second)


@contextlib.asynccontextmanager
async def plain(engine: str, models: Path) -> AsyncIterator[Plain]:
    """Run `engine` in a plain loop."""
    model = ModelDirectory(models).get(engine).file
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "plain_onnx.py"), str(model), str(THREADS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Plain(process)
    finally:
        process.terminate()
        await process.wait()


class Job:
    """A job whose queries are samples on the worker, timed from dispatch to completion.

    Its size follows from the pace of the job before.
    """

    def __init__(self, gateway: str, engine: str) -> None:
        self._gateway = gateway
        self._engine = engine
        self._per_second = 20.0

    async def measure(self, seconds: float) -> Figure:
        """Run a job of about `seconds`."""
        queries = max(1, int(self._per_second * seconds))
        async with grpc.aio.insecure_channel(self._gateway) as channel:
            stub = jobs_pb2_grpc.JobsStub(channel)
            spec = jobs_pb2.JobSpec(engine=self._engine, queries=queries)
            done = await stub.Submit(jobs_pb2.SubmitRequest(spec=spec), timeout=10.0)
            async for seen in stub.Watch(jobs_pb2.WatchRequest(job_id=done.id), timeout=120.0):
                done = seen
        self._per_second = queries / done.actual_s
        return Figure(1e3 / self._per_second, self._per_second)
