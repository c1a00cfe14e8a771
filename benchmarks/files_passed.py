"""The files whose code one request, or one query of a job, runs in gateway and agent.

    python -m benchmarks.files_passed

Gateway and agent run in one process and are connected by sockets, as two processes would be; the
engine host and the client have processes of their own. A file counts if each of several requests
ran its code, so that other activities of a moment, such as heartbeats, are left out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import uvloop

from benchmarks.workloads import identity
from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from worker_agent.agent_settings import AgentSettings
from worker_agent.app import Agent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

ROOT: Final = Path(__file__).parents[1]
PROGRAMS: Final = tuple(f"{ROOT / name}/" for name in ("gateway", "synergai", "worker_agent"))
ROUNDS: Final = 5
_LOOPBACK: Final = "127.0.0.1:0"


_files: Final[set[str]] = set()


def _note(frame: FrameType, event: str, _argument: object) -> None:
    if event == "call":
        _files.add(frame.f_code.co_filename)


async def files_of(call: Callable[[], Awaitable[object]]) -> list[str]:
    """Return the project's files whose code every one of several calls runs."""
    rounds = []
    for _ in range(ROUNDS):
        await asyncio.sleep(0.3)  # until the previous one has left nothing to do
        _files.clear()
        sys.setprofile(_note)
        await call()
        await asyncio.sleep(0.02)  # what follows the answer
        sys.setprofile(None)
        rounds.append({each for each in list(_files) if each.startswith(PROGRAMS)})
    return sorted(str(Path(each).relative_to(ROOT)) for each in set.intersection(*rounds))


# --- the client, in a process of its own --------------------------------------------------------


@cache
def _connect(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address)


def infer(address: str, request: bytes) -> None:
    """Send a request."""
    # The stubs of grpc leave the types of a raw call open.
    call: Any = _connect(address).unary_unary("/inference.GRPCInferenceService/ModelInfer")
    call(request)


def run_job(address: str, engine: str) -> None:
    """Run a job of one query."""
    jobs = jobs_pb2_grpc.JobsStub(_connect(address))
    spec = jobs_pb2.JobSpec(engine=engine, queries=1)
    job = jobs.Submit(jobs_pb2.SubmitRequest(spec=spec))
    for _ in jobs.Watch(jobs_pb2.WatchRequest(job_id=job.id)):
        pass


# --- the servers --------------------------------------------------------------------------------


async def main() -> None:
    """Print the files of a request and of a job of one query."""
    workload = identity()
    threading.setprofile(_note)  # of the threads that start from now on, such as the journal's
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        workload.build(models)
        settings = {
            "listen": _LOOPBACK,
            "hub": _LOOPBACK,
            "http": _LOOPBACK,
            "state": Path(folder) / "gateway",
        }
        async with Gateway(GatewaySettings.load(settings)) as gateway:
            agent = {
                "gateway": gateway.hub_address,
                "models": models,
                "worker_id": "worker",
                "state": Path(folder) / "agent",
            }
            config = AgentSettings.load(agent)
            client = ProcessPoolExecutor(1, get_context("spawn"))
            async with Agent(config):
                call = partial(asyncio.get_running_loop().run_in_executor, client)
                request = partial(call, infer, gateway.address, workload.request)
                job = partial(call, run_job, gateway.address, workload.engine)
                while not any(gateway.app.fleet.catalogue.in_service()):  # noqa: ASYNC110 - polls the gateway
                    await asyncio.sleep(0.05)
                for _ in range(20):
                    await request()
                await job()
                for title, run in (("ModelInfer", request), ("A job of one query", job)):
                    files = await files_of(run)
                    print(f"{title}: {len(files)} files", *files, sep="\n  ")
                client.shutdown()


if __name__ == "__main__":
    uvloop.run(main())
