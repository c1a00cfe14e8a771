"""Measures what transfers of the gateway's store cost requests, and how well they use a slow link.

1. Requests one at a time, without and with an engine on its way to several agents, in turns: the
   median latency should rise by at most 5 %.
2. An engine on its way over a link of 20 Mbit/s, which a proxy emulates: it should be used to at
   least 90 %.

    python tests/acceptance/distribution.py --megabytes 1000 --link-megabytes 50
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from synergai.client.client import Client
from synergai.client.store import PlacedState
from synergai.models.package import pack
from synergai.testing import LocalFleet
from synergai.zoo import build

ENGINE: Final = "onnx_identity"
OPTIONS: Final = ("--threads", "1", "--disk-budget", "100GB")
"""With a budget, what has arrived stays while the engine is not placed between two turns."""
WITHIN_S: Final = 3600.0
_PIECE: Final = 16 << 10
_LATE_S: Final = 0.05


class SlowLink:
    """A TCP proxy that passes a number of bits per second on to those who connect.

    Args:
        target: ``host:port`` to connect to.
        bits_per_s: rate of what the target sends; the other direction is not limited.
    """

    def __init__(self, target: str, bits_per_s: float) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._bytes_per_s = bits_per_s / 8
        self._free_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen; yield the address to connect to."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_PIECE)
        port: int = server.sockets[0].getsockname()[1]
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(
            self._host, int(self._port), limit=_PIECE
        )
        for each in (
            self._pass(reader, up_writer, limited=False),
            self._pass(up_reader, writer, limited=True),
        ):
            task = asyncio.create_task(each)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limited: bool
    ) -> None:
        try:
            while data := await reader.read(_PIECE):
                if limited:
                    now = time.monotonic()
                    # A link does not wait for a timer that fires late.
                    start = max(self._free_at, now - _LATE_S)
                    self._free_at = start + len(data) / self._bytes_per_s
                    await asyncio.sleep(max(0.0, self._free_at - now))
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def make_engine(folder: Path, built: Path, size: int) -> Path:
    """Return the folder of a small engine with a large file beside the model."""
    folder.mkdir()
    for file in (built / ENGINE).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with (folder / "filler.bin").open("wb") as filler:
        for start in range(0, size, 1 << 20):
            filler.write(os.urandom(min(1 << 20, size - start)))
    return folder


async def push(client: Client, source: Path, name: str, place: list[str]) -> None:
    """Push version 1 of an engine."""
    package = await asyncio.to_thread(pack, source, name, 1)
    data = package.manifest.encode()
    await client.push_engine(name, 1, data, package.paths, place=place)


async def states(client: Client, name: str) -> list[PlacedState]:
    """Return the states of an engine on its workers."""
    content = await client.stored_engines()
    [stored] = [each for each in content.engines if each.engine == name]
    return [placed.state for placed in stored.workers.values()]


async def is_installed(client: Client, name: str, workers: int) -> bool:
    """Return whether so many workers have an engine."""
    return (await states(client, name)).count(PlacedState.INSTALLED) >= workers


async def latencies(client: Client, seconds: float) -> list[float]:
    """Send requests one at a time; return their latencies in seconds."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        await client.infer(ENGINE, {"x": [1.0]}, deadline=30.0)
        found.append(time.perf_counter() - begun)
    return found


async def measure_latency(
    fleet: LocalFleet, folder: Path, built: Path, size: int, agents: int
) -> dict[str, float]:
    """Return the median latency without and with transfers, in milliseconds."""
    source = make_engine(folder / "large", built, size)
    async with Client(fleet.address) as client:
        await push(client, source, "large", ["worker=nobody"])
        await latencies(client, 2.0)
        idle: list[float] = []
        busy: list[float] = []
        transfers = 0
        deadline = time.monotonic() + WITHIN_S
        while not await is_installed(client, "large", agents) and time.monotonic() < deadline:
            await client.place_engine("large", 1, ["worker=nobody"])
            await asyncio.sleep(0.3)
            idle += await latencies(client, 3.0)
            await client.place_engine("large", 1, ["worker=w*"])
            await asyncio.sleep(0.3)
            found = await latencies(client, 3.0)
            if PlacedState.FETCHING in await states(client, "large"):
                busy += found
                transfers += 1
        return {
            "idle_ms": statistics.median(idle) * 1e3,
            "transfer_ms": statistics.median(busy or idle) * 1e3,
            "requests": len(busy),
            "rounds": transfers,
        }


async def measure_link(
    fleet: LocalFleet, folder: Path, built: Path, models: Path, size: int, mbits: float
) -> dict[str, float]:
    """Return the share of a slow link that a fetch uses."""
    source = make_engine(folder / "linked", built, size)
    async with (
        SlowLink(fleet.hub_address, mbits * 1e6).open() as address,
        Client(fleet.address) as client,
    ):
        fleet.start_agent("far", models=models, worker_class="far", options=["--gateway", address])
        await until_worker(client, "far")
        await push(client, source, "linked", ["far"])
        begun = time.monotonic()
        while not await is_installed(client, "linked", 1):
            if time.monotonic() > begun + WITHIN_S:
                raise TimeoutError("the engine did not arrive")
            await asyncio.sleep(0.05)
        seconds = time.monotonic() - begun
        return {"seconds": seconds, "used": size * 8 / seconds / (mbits * 1e6)}


async def until_worker(client: Client, name: str) -> None:
    """Wait until a worker has connected."""
    deadline = time.monotonic() + 120.0
    while not any(worker.id == name for worker in await client.workers()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"worker {name} did not connect")
        await asyncio.sleep(0.1)


def run(megabytes: int, link_megabytes: int, agents: int, mbits: float) -> dict[str, float]:
    """Run both measurements; return their figures."""
    with tempfile.TemporaryDirectory() as temporary, LocalFleet(Path(temporary, "f")) as fleet:
        folder = Path(temporary)
        models, empty = folder / "models", folder / "empty"
        empty.mkdir()
        build.build(ENGINE, models, lambda _: None)
        fleet.start_gateway()
        for number in range(agents):
            fleet.start_agent(f"w{number}", models=models, options=OPTIONS)
        fleet.wait_for_workers(agents)
        figures = asyncio.run(measure_latency(fleet, folder, models, megabytes * 1_000_000, agents))
        figures |= asyncio.run(
            measure_link(fleet, folder, models, empty, link_megabytes * 1_000_000, mbits)
        )
    return figures


def main() -> None:
    """Print the figures; exit with 1 if they miss their limits."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--link-megabytes", type=int, default=50)
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--link-mbits", type=float, default=20.0)
    options = parser.parse_args()
    figures = run(options.megabytes, options.link_megabytes, options.agents, options.link_mbits)
    rise = figures["transfer_ms"] / figures["idle_ms"] - 1
    print(json.dumps(figures | {"rise": rise}, indent=2))
    sys.exit(rise > 0.05 or figures["used"] < 0.9)


if __name__ == "__main__":
    main()
