"""Cost of an access table: of each check, and of unary calls with and without one.

::

    python benchmarks/access.py
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import psutil
import uvloop
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.workloads import identity
from demo.local_fleet import LocalFleet
from gateway.entry.access.authenticator import Authenticator, PeerCertificate
from gateway.entry.access.methods import METHODS
from gateway.entry.access.table import LiveTable
from gateway.entry.call_guard import CallGuard
from synergai.wire.rpc import channel_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

METHOD = "/inference.GRPCInferenceService/ModelInfer"
TOKEN = "t" * 43
ISSUER = "https://login.example.org"
METADATA = (("user-agent", "grpc-python-asyncio/1.85.1"), ("authorization", f"Bearer {TOKEN}"))


def write_table(folder: Path, keys: Path) -> Path:
    """Write a table of a thousand clients."""
    others = "".join(
        f'[[clients]]\nname = "client-{number}"\n'
        f'token_sha256 = "{hashlib.sha256(str(number).encode()).hexdigest()}"\n'
        for number in range(1000)
    )
    path = folder / "access.toml"
    path.write_text(
        f'{others}[[clients]]\nname = "measured"\n'
        f'token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\n'
        '[[clients]]\nname = "board"\ncertificate = "board.example.org"\n'
        f'[[jwt]]\nissuer = "{ISSUER}"\naudience = "synergai"\nkeys = "{keys}"\n'
        '[[grants]]\nto = ["*"]\nroles = ["infer"]\nengines = ["onnx_ident*"]\n'
        '[[grants]]\nto = ["anonymous"]\nroles = ["observe"]\n'
    )
    return path


async def time_us(check: Callable[[], Awaitable[object]], calls: int, rounds: int) -> float:
    """Return the median over the rounds of the microseconds per call."""
    figures = []
    for _ in range(rounds):
        begun_at = time.perf_counter()
        for _ in range(calls):
            await check()
        figures.append((time.perf_counter() - begun_at) / calls * 1e6)
    return statistics.median(figures)


async def measure_checks(folder: Path, calls: int, rounds: int) -> None:
    """Print what a check costs, by kind of credentials."""
    key = ec.generate_private_key(ec.SECP256R1())
    keys = folder / "keys.json"
    published = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())
    keys.write_text('{"keys": [{"kid": "1", ' + published.lstrip("{") + "]}")
    claims = {
        "iss": ISSUER,
        "aud": "synergai",
        "sub": "alice",
        "exp": dt.datetime.now(dt.UTC) + dt.timedelta(days=1),
        "groups": ["cameras"],
    }
    signed = jwt.encode(claims, key, "ES256", {"kid": "1"})
    async with AsyncExitStack() as stack:
        authenticator = Authenticator(LiveTable(write_table(folder, keys)), stack)
        call_guard = CallGuard(authenticator, None)

        def admitted(token: str) -> Callable[[], Awaitable[object]]:
            return lambda: call_guard.admit(METHODS[METHOD], [f"Bearer {token}"], None)

        board = PeerCertificate(("board.example.org",))
        caller = await authenticator.authenticate([f"Bearer {TOKEN}"], None)
        role = next(iter(caller._grants[0].roles))  # noqa: SLF001 - any role of the caller

        async def tenant_of() -> str:
            return caller.tenant_of("", role, engine="onnx_identity")

        checks: dict[str, Callable[[], Awaitable[object]]] = {
            "token and role": admitted(TOKEN),
            "JSON web token and role": admitted(signed),
            "certificate": lambda: authenticator.authenticate([], board),
            "engine and tenant": tenant_of,
        }
        for name, check in checks.items():
            print(f"{name:36} {await time_us(check, calls, rounds):6.2f} us")


class Server:
    """A fleet, and a client that calls it one request at a time."""

    def __init__(self, fleet: LocalFleet, request: bytes, metadata: object) -> None:
        assert fleet.gateway is not None
        self._process = psutil.Process(fleet.gateway.pid)
        self._channel = grpc.insecure_channel(fleet.address, channel_options())
        self._call: Any = self._channel.unary_unary(METHOD)
        self._request, self._metadata = request, metadata

    def measure(self, seconds: float) -> tuple[float, float]:
        """Return the median latency in ms, and the gateway's CPU time per request in us."""
        latencies = []
        cpu = self._process.cpu_times()
        until = time.perf_counter() + seconds
        while (begun_at := time.perf_counter()) < until:
            self._call(self._request, metadata=self._metadata)
            latencies.append(time.perf_counter() - begun_at)
        now = self._process.cpu_times()
        used = now.user + now.system - cpu.user - cpu.system
        return statistics.median(latencies) * 1e3, used / len(latencies) * 1e6


def measure_calls(folder: Path, seconds: float, rounds: int) -> None:
    """Print latency and CPU time of unary calls, without and with an access table."""
    workload = identity()
    models = folder / "models"
    workload.build(models)
    table = write_table(folder, folder / "keys.json")
    request = workload.request
    with LocalFleet(folder / "open") as opened, LocalFleet(folder / "guarded") as guarded:
        opened.start_gateway()
        guarded.start_gateway(["--access", str(table)])
        for fleet in (opened, guarded):
            fleet.start_agent("worker", models=models)
            fleet.wait_for_workers(1)
        servers = {
            "without access table": Server(opened, request, None),
            "with access table": Server(guarded, request, METADATA[1:]),
        }
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for server in servers.values():
            server.measure(0.5)
        for number in range(rounds):
            order = list(servers.items())
            for name, server in order[number % 2 :] + order[: number % 2]:
                figures[name].append(server.measure(seconds))
    for name, found in figures.items():
        latency, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{name:36} {latency:6.3f} ms, {cpu:6.0f} us of CPU time of the gateway per request")
    pairs = list(zip(*figures.values(), strict=True))
    latency = statistics.median(after[0] - before[0] for before, after in pairs)
    cpu = statistics.median(after[1] - before[1] for before, after in pairs)
    print(f"{'difference, median over the rounds':36} {latency:6.3f} ms, {cpu:6.0f} us")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measure_checks(Path(folder), options.calls, options.rounds))
        measure_calls(Path(folder), options.seconds, options.rounds)


if __name__ == "__main__":
    main()
