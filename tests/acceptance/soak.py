"""Send many requests through a gateway; check that its memory does not grow.

    python tests/acceptance/soak.py --requests 1000000
    python tests/acceptance/soak.py --requests 20000 --elements 150528    # 602 kB each way
    python tests/acceptance/soak.py --requests 1000000 --calls unary

Requests are sent over one stream or by unary calls, 16 in flight. The resident memory of gateway,
agent and engine host is sampled a hundred times; after the first fifth, its growth per request must
stay below the size of the smallest object. The memory before the first request is printed as well.
``--minutes`` or Ctrl-C end the run early, with a verdict on the samples taken.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import psutil
import uvloop

from demo.local_fleet import LocalFleet
from profiler.zoo.recipes import build
from synergai.oip import inference_pb2 as oip
from tests.acceptance.scripts import verdict

Send: TypeAlias = Callable[[str, bytes, int], Coroutine[Any, Any, None]]
"""Sends a serialised request to an address, this many times."""

ENGINE = "onnx_identity"
AGENT = "worker"
IN_FLIGHT = 16
SAMPLES = 100
WARM_UP = 0.2
"""Fraction of the samples that is ignored, while pools and caches fill."""
IDLE_LIMITS_MB = {"gateway": 80.0, "agent": 55.0}
GROWTH_LIMIT_BYTES = 8.0
"""Per request; the smallest Python object takes 16."""
NOISE_BYTES = 2e6
"""Allowed total growth, for runs with few requests."""
MB = 1e6
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident bytes by process after a number of requests."""

    requests: int
    rss: Mapping[str, int]


def growth(samples: Sequence[Sample], process: str) -> float:
    """Return bytes per request, as the median slope between all pairs of samples (Theil-Sen).

    A single step, such as a new arena of the allocator, does not affect it.
    """
    return statistics.median(
        (later.rss[process] - earlier.rss[process]) / (later.requests - earlier.requests)
        for earlier, later in combinations(samples, 2)
    )


def find_errors(
    idle: Mapping[str, int], samples: Sequence[Sample], request_bytes: int = 0
) -> list[str]:
    """Return an error for each process that grows, or needs too much before the first request.

    The C library keeps freed buffers of up to as many messages as are in flight, which is added
    to the allowed growth for large requests.
    """
    found = [
        f"{process}: {idle[process] / MB:.1f} MB before the first request, limit {limit:g}"
        for process, limit in IDLE_LIMITS_MB.items()
        if idle[process] > limit * MB
    ]
    counted = samples[int(len(samples) * WARM_UP) :]
    if len(counted) < 2:
        return [*found, "too few samples to detect growth"]
    requests = counted[-1].requests - counted[0].requests
    noise = NOISE_BYTES + 2 * IN_FLIGHT * request_bytes
    limit = max(GROWTH_LIMIT_BYTES, noise / requests)
    for process in counted[0].rss:
        slope = growth(counted, process)
        if slope > limit:
            found.append(f"{process}: grows by {slope:.1f} bytes per request, limit {limit:.1f}")
    return found


def processes(fleet: LocalFleet) -> dict[str, psutil.Process]:
    """Return the processes of gateway, agent and, once it exists, the engine host."""
    assert fleet.gateway is not None
    agent = psutil.Process(fleet.agents[AGENT].pid)
    hosts = [("engine host", child) for child in agent.children()]
    return dict([("gateway", psutil.Process(fleet.gateway.pid)), ("agent", agent), *hosts])


def resident(watched: Mapping[str, psutil.Process]) -> dict[str, int]:
    return {name: process.memory_info().rss for name, process in watched.items()}


def request(elements: int) -> bytes:
    """Return a request of `elements` FP32 ones for the identity engine."""
    message = oip.ModelInferRequest(model_name=ENGINE)
    message.inputs.add(name="x", datatype="FP32", shape=[elements])
    message.raw_input_contents.append(b"\0\0\x80\x3f" * elements)
    return message.SerializeToString()


async def send_requests(address: str, data: bytes, count: int) -> None:
    """Send `count` requests over one stream and check every response."""
    free = asyncio.Semaphore(IN_FLIGHT)

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(count):
            await free.acquire()
            yield data

    async with grpc.aio.insecure_channel(address, options=_UNLIMITED) as channel:
        method: grpc.aio.StreamStreamMultiCallable[bytes, oip.ModelStreamInferResponse]
        method = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=oip.ModelStreamInferResponse.FromString,
        )
        call = method(requests())
        received = 0
        try:
            async for response in call:
                if response.error_message:
                    raise SystemExit(f"request {received + 1}: {response.error_message}")
                received += 1
                free.release()
        finally:
            call.cancel()
    if received != count:
        raise SystemExit(f"{received} responses to {count} requests")


async def send_calls(address: str, data: bytes, count: int) -> None:
    async with grpc.aio.insecure_channel(address, options=_UNLIMITED) as channel:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        left = iter(range(count))

        async def send_each() -> None:
            for _ in left:
                await method(data)

        await asyncio.gather(*(send_each() for _ in range(IN_FLIGHT)))


def soak(
    fleet: LocalFleet,
    send: Send,
    data: bytes,
    count: int,
    minutes: float,
    samples: list[Sample],
) -> None:
    """Send the requests in portions, with a sample after each."""
    deadline = time.monotonic() + minutes * 60.0
    portion = max(1, count // SAMPLES)
    done = 0
    while done < count and time.monotonic() < deadline:
        began = time.monotonic()
        uvloop.run(send(fleet.address, data, portion))
        done += portion
        samples.append(Sample(done, resident(processes(fleet))))
        if len(samples) % 10 == 0:
            rate = portion / (time.monotonic() - began)
            memory = ", ".join(f"{n} {b / MB:.1f} MB" for n, b in samples[-1].rss.items())
            print(f"{done:,} requests, {rate:,.0f}/s: {memory}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--elements", type=int, default=1, help="FP32 values in each request")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit")
    parser.add_argument("--calls", choices=("unary", "stream"), default="stream")
    arguments = parser.parse_args()
    send = send_calls if arguments.calls == "unary" else send_requests
    data = request(arguments.elements)
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(temporary, "models")
        build(ENGINE, models)
        with LocalFleet(Path(temporary, "run")) as fleet:
            fleet.start_gateway()
            fleet.start_agent(AGENT, models=models, options=["--threads", "1"])
            fleet.wait_for_workers(1)
            idle = resident(processes(fleet))
            print("idle: " + ", ".join(f"{n} {b / MB:.1f} MB" for n, b in idle.items()))
            with contextlib.suppress(KeyboardInterrupt):
                soak(fleet, send, data, arguments.requests, arguments.minutes, samples)
    found = find_errors(idle, samples, len(data))
    return verdict(found, f"{samples[-1].requests if samples else 0:,} requests: ")


if __name__ == "__main__":
    sys.exit(main())
