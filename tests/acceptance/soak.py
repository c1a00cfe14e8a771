"""Send many requests through a gateway and show that its memory stays flat.

    python tests/acceptance/soak.py --requests 1000000
    python tests/acceptance/soak.py --requests 20000 --elements 150528    # 602 kB each way

Requests go over one stream, 16 under way. The resident memory of gateway, agent and engine host is
sampled a hundred times; what it grows by from the second fifth on, per request, must stay below a
limit that is far less than any object takes. Also printed: what each takes before the first
request. ``--minutes`` ends earlier, Ctrl-C at any time, both with a verdict on what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import uvloop

from synergai.oip import inference_pb2 as oip
from synergai.testing import LocalFleet
from synergai.zoo.build import build

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

ENGINE = "onnx_identity"
AGENT = "worker"
IN_FLIGHT = 16
SAMPLES = 100
WARM_UP = 0.2
"""Share of the samples that does not count: pools and caches fill."""
IDLE_LIMITS_MB = {"gateway": 80.0, "agent": 60.0}
GROWTH_LIMIT_BYTES = 8.0
"""Per request; the smallest Python object takes 16."""
NOISE_BYTES = 2e6
"""What memory may grow by altogether, however few requests there were."""
MB = 1e6
_LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident bytes by process, after so many requests."""

    requests: int
    rss: Mapping[str, int]


def growth(samples: Sequence[Sample], process: str) -> float:
    """Bytes per request: the median slope between all pairs of samples (Theil and Sen).

    A step that happens once, such as another arena of the allocator, does not move it.
    """
    return statistics.median(
        (later.rss[process] - earlier.rss[process]) / (later.requests - earlier.requests)
        for earlier, later in combinations(samples, 2)
    )


def faults(idle: Mapping[str, int], samples: Sequence[Sample], request_bytes: int = 0) -> list[str]:
    """What is wrong: a process that grows, or one that takes too much before the first request.

    What the C library keeps of freed buffers comes and goes by as many messages as are under way,
    so that large requests are allowed that much on top.
    """
    found = [
        f"{process}: {idle[process] / MB:.1f} MB before the first request, limit {limit:g}"
        for process, limit in IDLE_LIMITS_MB.items()
        if idle[process] > limit * MB
    ]
    counted = samples[int(len(samples) * WARM_UP) :]
    if len(counted) < 2:
        return [*found, "too few samples to say whether memory grows"]
    requests = counted[-1].requests - counted[0].requests
    noise = NOISE_BYTES + 2 * IN_FLIGHT * request_bytes
    limit = max(GROWTH_LIMIT_BYTES, noise / requests)
    for process in counted[0].rss:
        slope = growth(counted, process)
        if slope > limit:
            found.append(f"{process}: grows by {slope:.1f} bytes per request, limit {limit:.1f}")
    return found


def processes(fleet: LocalFleet) -> dict[str, psutil.Process]:
    """Gateway, agent and, once there is one, the engine host."""
    assert fleet.gateway is not None
    agent = psutil.Process(fleet.agents[AGENT].pid)
    hosts = [("engine host", child) for child in agent.children()]
    return dict([("gateway", psutil.Process(fleet.gateway.pid)), ("agent", agent), *hosts])


def resident(watched: Mapping[str, psutil.Process]) -> dict[str, int]:
    """Resident bytes of each."""
    return {name: process.memory_info().rss for name, process in watched.items()}


def request(elements: int) -> bytes:
    """So many FP32 ones for the identity engine."""
    message = oip.ModelInferRequest(model_name=ENGINE)
    message.inputs.add(name="x", datatype="FP32", shape=[elements])
    message.raw_input_contents.append(b"\0\0\x80\x3f" * elements)
    return message.SerializeToString()


async def send(address: str, data: bytes, count: int) -> None:
    """Send so many requests over one stream, and look at every answer."""
    free = asyncio.Semaphore(IN_FLIGHT)

    async def requests() -> AsyncIterator[bytes]:
        for _ in range(count):
            await free.acquire()
            yield data

    async with grpc.aio.insecure_channel(address, options=_LARGE) as channel:
        method: Any = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=oip.ModelStreamInferResponse.FromString,
        )
        call = method(requests())
        answered = 0
        try:
            async for answer in call:
                if answer.error_message:
                    raise SystemExit(f"request {answered + 1}: {answer.error_message}")
                answered += 1
                free.release()
        finally:
            call.cancel()
    if answered != count:
        raise SystemExit(f"{answered} answers to {count} requests")


def soak(fleet: LocalFleet, data: bytes, count: int, minutes: float, samples: list[Sample]) -> None:
    """Send the requests in portions; a sample after each."""
    deadline = time.monotonic() + minutes * 60.0
    portion = max(1, count // SAMPLES)
    done = 0
    while done < count and time.monotonic() < deadline:
        began = time.monotonic()
        uvloop.run(send(fleet.address, data, portion))
        done += portion
        samples.append(Sample(done, resident(processes(fleet))))
        if len(samples) % 10 == 0:
            pace = portion / (time.monotonic() - began)
            memory = ", ".join(f"{n} {b / MB:.1f} MB" for n, b in samples[-1].rss.items())
            print(f"{done:,} requests, {pace:,.0f}/s: {memory}", flush=True)


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--elements", type=int, default=1, help="FP32 values in each request")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after so long")
    arguments = parser.parse_args()
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
                soak(fleet, data, arguments.requests, arguments.minutes, samples)
    found = faults(idle, samples, len(data))
    for line in found:
        print(line)
    print(f"{samples[-1].requests if samples else 0:,} requests: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
