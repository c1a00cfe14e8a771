"""The servers under test and the baselines, in separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import psutil

from benchmarks.client import Figure
from benchmarks.ports import free_port, wait_for_port
from demo.local_fleet import LocalFleet
from synergai.errors import Unavailable
from synergai.models.directory import ModelDirectory
from synergai.v1 import jobs_pb2, jobs_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HERE = Path(__file__).parent
ECHO = "bare echo"
DISCARD = "bare server that discards"
GATEWAY = "gateway and agent"
SERVE = "serve"
"""Gateway and agent in one process."""
GRPCIO = "serve, grpcio"
"""The same with grpcio's server."""
PINNED = "gateway and agent, pinned"
"""The gateway pinned to one core and the engine to another; client and agent are not pinned."""
PLAIN = "plain ONNX Runtime"
THREADS = 1
"""Intra-op threads of every session."""


@contextlib.contextmanager
def run_bare_grpc(role: str, target: str = "") -> Iterator[str]:
    """Run a bare grpc.aio server, ``echo``, ``discard`` or ``proxy``; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, str(HERE / "bare_grpc.py"), role, address, target])
    try:
        wait_for_port(address)
        yield address
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def run_synergai(
    folder: Path, models: Path, *, pinned: bool = False, dictionary: Path | None = None
) -> Iterator[str]:
    """Run a gateway and an agent; yield the address for clients.

    Args:
        folder: directory for logs and state; created.
        models: model directory.
        pinned: pin gateway and engine to separate cores; see `PINNED`.
        dictionary: configuration dictionary with profiles of worker class ``local``.

    Raises:
        Unavailable: they did not start; the message has the last lines of their logs.
    """
    options = ["--threads", str(THREADS)]
    prefix: list[str] = []
    if pinned:
        first, second, *_ = sorted(os.sched_getaffinity(0))
        prefix = ["taskset", "--cpu-list", str(first)]
        options += ["--cores", str(second)]
    with LocalFleet(folder) as fleet:
        try:
            profiles = [] if dictionary is None else ["--dictionary", str(dictionary)]
            fleet.start_gateway(profiles, prefix)
            fleet.start_agent("worker", models=models, options=options)
            fleet.wait_for_workers(1)
        except Unavailable as error:
            # Quote the logs, since the directory is deleted after the run.
            logs = sorted(folder.glob("*.log"))
            lines = [line for log in logs for line in log.read_text().splitlines()[-1:]]
            raise Unavailable(f"{error}; last log lines: {' / '.join(lines)}") from error
        yield fleet.address


@contextlib.contextmanager
def run_serve(folder: Path, models: Path, *options: str) -> Iterator[LocalFleet]:
    """Run gateway and agent in one process, with logs and state in `folder`.

    Raises:
        Unavailable: they did not start.
    """
    with LocalFleet(folder) as fleet:
        fleet.start_gateway(("--threads", str(THREADS), *options), models=models)
        fleet.wait_for_workers(1)
        yield fleet


def resident_mb(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process and its descendants in MB, shared pages once each."""
    root = psutil.Process(process.pid)
    return sum(each.memory_info().rss for each in (root, *root.children(recursive=True))) / 1e6


class PlainOnnx:
    """A plain ONNX Runtime loop, in a process that is idle while others are measured."""

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
async def run_plain_onnx(engine: str, models: Path, rows: int = 1) -> AsyncIterator[PlainOnnx]:
    """Run `engine` in a plain loop, in batches of `rows`."""
    model = ModelDirectory(models).get(engine).file
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "plain_onnx.py"), str(model), str(THREADS), str(rows)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield PlainOnnx(process)
    finally:
        process.terminate()
        await process.wait()


class JobProbe:
    """Job on samples stored at the worker, timed from dispatch to completion.

    The throughput of each job determines the size of the next.
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
            async for update in stub.Watch(jobs_pb2.WatchRequest(job_id=done.id), timeout=120.0):
                done = update
        self._per_second = queries / done.actual_s
        return Figure(1e3 / self._per_second, self._per_second)
