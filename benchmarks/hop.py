"""What a hop costs: a one-element identity model, direct and through the gateway.

Measured in one run, in turns: a bare grpc.aio echo, a bare grpc.aio proxy in front of it, our
agent asked directly, and our gateway with that agent behind it. Each is a process of its own,
and so is the client. Unary and streaming, 1 and 16 in flight; medians over the rounds.

    python benchmarks/hop.py [--seconds 2] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

from engines.catalogue import build
from synergai.oip import inference_pb2 as oip
from synergai.testing import LocalFleet, free_port, wait_for_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SERVICE = "inference.GRPCInferenceService"
ENGINE = "onnx_identity"
HERE = Path(__file__).parent
IN_FLIGHT = (1, 16)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: median latency in milliseconds, and requests per second."""

    median_ms: float
    per_second: float


def identity_request(elements: int = 1) -> bytes:
    """A request of `elements` FP32 values, serialised once."""
    request = oip.ModelInferRequest(model_name=ENGINE)
    request.inputs.add(name="x", datatype="FP32", shape=[elements])
    request.raw_input_contents.append(b"\0\0\x80\x3f" * elements)
    return request.SerializeToString()


class Client:
    """Raw bytes in and out, so that the client costs as little as it can."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            target,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._unary: Any = self._channel.unary_unary(f"/{SERVICE}/ModelInfer")
        self._stream: Any = self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def unary(self, request: bytes, in_flight: int, seconds: float) -> Figure:
        """Keep `in_flight` calls under way for `seconds`."""
        latencies: list[float] = []
        stop = time.perf_counter() + seconds

        async def one_after_another() -> None:
            while (began := time.perf_counter()) < stop:
                await self._unary(request)
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
        return _figure(latencies, time.perf_counter() - began)

    async def stream(self, request: bytes, in_flight: int, seconds: float) -> Figure:
        """The same on one stream; answers are matched to requests by their order."""
        latencies: list[float] = []
        sent: list[float] = []
        free = asyncio.Semaphore(in_flight)
        stop = time.perf_counter() + seconds

        async def requests() -> AsyncIterator[bytes]:
            while True:
                await free.acquire()
                now = time.perf_counter()
                if now >= stop:
                    return
                sent.append(now)
                yield request

        call = self._stream(requests())
        began = time.perf_counter()
        try:
            async for _ in call:
                latencies.append(time.perf_counter() - sent[len(latencies)])
                free.release()
        finally:
            call.cancel()
        return _figure(latencies, time.perf_counter() - began)


def _figure(latencies: list[float], seconds: float) -> Figure:
    return Figure(statistics.median(latencies) * 1e3, len(latencies) / seconds)


@contextlib.contextmanager
def bare(role: str, target: str = "") -> Iterator[str]:
    """Run a yardstick in a process of its own."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, str(HERE / "bare.py"), role, address, target])
    try:
        wait_for_port(address)
        yield address
    finally:
        process.terminate()
        process.wait()


async def measure(
    targets: dict[str, str], seconds: float, rounds: int, elements: int
) -> dict[tuple[str, str, int], Figure]:
    """Measure every target in every way, in turns, and take medians over the rounds."""
    request = identity_request(elements)
    seen: dict[tuple[str, str, int], list[Figure]] = {}
    clients = {name: Client(target) for name, target in targets.items()}
    try:
        for client in clients.values():
            await client.unary(request, 1, 0.3)
            await client.stream(request, 16, 0.3)
        for _ in range(rounds):
            for in_flight in IN_FLIGHT:
                for name, client in clients.items():
                    unary = await client.unary(request, in_flight, seconds)
                    seen.setdefault((name, "unary", in_flight), []).append(unary)
                    stream = await client.stream(request, in_flight, seconds)
                    seen.setdefault((name, "stream", in_flight), []).append(stream)
    finally:
        for client in clients.values():
            await client.close()
    return {
        key: Figure(
            statistics.median(f.median_ms for f in figures),
            statistics.median(f.per_second for f in figures),
        )
        for key, figures in seen.items()
    }


def report(figures: dict[tuple[str, str, int], Figure], names: list[str]) -> None:
    """Print the table and the ratios that matter."""
    header = [f"{way}, {n} in flight" for way in ("unary", "stream") for n in IN_FLIGHT]
    print(f"{'':>8} " + " ".join(f"{h:>22}" for h in header))
    for name in names:
        cells = [figures[name, way, n] for way in ("unary", "stream") for n in IN_FLIGHT]
        print(
            f"{name:>8} "
            + " ".join(f"{c.median_ms:>9.3f} ms {c.per_second:>7.0f}/s" for c in cells)
        )
    for way in ("unary", "stream"):
        added = figures["gateway", way, 1].median_ms - figures["agent", way, 1].median_ms
        echo = figures["echo", "unary", 1].median_ms
        print(
            f"{way}: the gateway adds {added:.3f} ms at the median, "
            f"{added / echo:.2f} bare unary echoes"
        )
        ratio = figures["gateway", way, 16].per_second / figures["proxy", way, 16].per_second
        print(f"{way}: {ratio:.2f} times the requests/s of the bare proxy at 16 in flight")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--elements", type=int, default=1, help="FP32 values per request")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        models = Path(folder, "models")
        build(ENGINE, models)
        listen = f"127.0.0.1:{free_port()}"
        fleet = stack.enter_context(LocalFleet(Path(folder, "run")))
        fleet.start_gateway()
        fleet.start_agent("direct", models=models, options=["--listen", listen, "--threads", "1"])
        fleet.wait_for_workers(1)
        wait_for_port(listen)
        echo = stack.enter_context(bare("echo"))
        targets = {
            "echo": echo,
            "proxy": stack.enter_context(bare("proxy", echo)),
            "agent": listen,
            "gateway": fleet.address,
        }
        figures = uvloop.run(
            measure(targets, arguments.seconds, arguments.rounds, arguments.elements)
        )
    report(figures, list(targets))
    if arguments.json:
        rows = [
            {
                "target": n,
                "way": w,
                "in_flight": i,
                "median_ms": f.median_ms,
                "per_second": f.per_second,
            }
            for (n, w, i), f in figures.items()
        ]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
