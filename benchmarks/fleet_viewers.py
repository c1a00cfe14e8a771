"""What open fleet pages cost the gateway: latency of requests, and memory.

Run with ``python -m benchmarks.fleet_viewers [--viewers N] [--seconds S] [--rounds N]``. Rounds
without viewers, with viewers that read, and with viewers that never do alternate, with one request
in flight. The requests of the warm-up fill the page's history.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import psutil

from benchmarks.workloads import identity
from demo.local_fleet import LocalFleet

if TYPE_CHECKING:
    from collections.abc import Iterator

_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_WARM_UP_S: Final = 70.0
_SETTLE_S: Final = 0.5
_KINDS: Final = ("none", "reading", "silent")


async def view(address: str, count: int, *, silent: bool) -> None:
    """Open the page's events in `count` connections; read them, or never."""

    async def follow() -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET /fleet/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await (asyncio.Event().wait() if silent else _drain(reader))

    await asyncio.gather(*(follow() for _ in range(count)))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


@contextlib.contextmanager
def viewers(kind: str, address: str, count: int) -> Iterator[None]:
    """Run viewers in a process of their own while the context is open."""
    if kind == "none":
        yield
        return
    command = [sys.executable, "-m", "benchmarks.fleet_viewers", "--as", kind]
    process = subprocess.Popen([*command, "--address", address, "--viewers", str(count)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def latencies(address: str, seconds: float) -> list[float]:
    """Return the latencies of requests, one after another, in milliseconds."""
    request, found = identity().request, []
    with grpc.insecure_channel(address) as channel:
        infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            infer(request)
            found.append((time.monotonic() - began) * 1e3)
    return found


def measure(count: int, seconds: float, rounds: int) -> None:
    """Measure, and print a line for each kind of viewers."""
    figures: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in _KINDS}
    with tempfile.TemporaryDirectory() as folder, LocalFleet(Path(folder)) as fleet:
        models = Path(folder) / "models"
        identity().build(models)
        fleet.start_gateway(models=models)
        fleet.wait_for_workers(1)
        assert fleet.gateway is not None
        process = psutil.Process(fleet.gateway.pid)
        latencies(fleet.address, _WARM_UP_S)
        for _ in range(rounds):
            for kind in _KINDS:
                with viewers(kind, fleet.http_address, count):
                    time.sleep(_SETTLE_S)
                    took = sorted(latencies(fleet.address, seconds))
                    figures[kind].append(
                        (
                            statistics.median(took),
                            took[int(0.99 * len(took))],
                            process.memory_info().rss / 1e6,
                        )
                    )
                time.sleep(_SETTLE_S)
    for kind, of_kind in figures.items():
        p50, p99, rss = (statistics.median(column) for column in zip(*of_kind, strict=True))
        print(f"{kind:>8} viewers: p50 {p50:.3f} ms, p99 {p99:.3f} ms, RSS {rss:.1f} MB")
        print("          p99 of the rounds:", *(f"{each[1]:.3f}" for each in of_kind))
        print("          RSS of the rounds:", *(f"{each[2]:.1f}" for each in of_kind))


def main() -> None:
    """Run the benchmark, or the viewers of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--as", dest="kind", choices=_KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        silent = arguments.kind == "silent"
        asyncio.run(view(arguments.address, arguments.viewers, silent=silent))
    else:
        measure(arguments.viewers, arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
