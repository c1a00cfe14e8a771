"""Where the time of a request goes: medians from time stamps, with one request in flight.

    python -m benchmarks.request_steps [unary|stream] [MILLISECONDS]

Without milliseconds of pause between them, each request follows the one before at once.
`serve` runs in this process, client and engine host in processes of their own. All of them read the
same monotonic clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
import uvloop

from benchmarks.ports import free_port
from benchmarks.workloads import identity
from gateway.calls.requests.inference import Request
from gateway.calls.servicers.inference import InferenceCalls
from gateway.dispatch.dispatcher import Dispatcher
from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from gateway.serve.server import LocalServer
from synergai.wire.native.connection import ClientConnection
from synergai.wire.request_codec import RequestDecoder
from worker_agent.agent_settings import WorkerSettings
from worker_agent.host import main as host_main
from worker_agent.host.inbox import Inbox
from worker_agent.host.loop import HostLoop
from worker_agent.hosts.connection import HostConnection, RunningHost
from worker_agent.hosts.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS: Final = 2000
_WARM_UP: Final = 500
_SETTLE_S: Final = 3.0
"""Time for the engine to be inspected and loaded."""
_LOOPBACK: Final = "127.0.0.1:0"
_SERVICE: Final = "/inference.GRPCInferenceService"
_BEGIN, _END = "client: sends", "client: has the response"

_SERVE_STAMPS: Final = (
    (ClientConnection, "buffer_updated", "server: has the request"),
    (RequestDecoder, "parse", "gRPC: has received the message"),
    (InferenceCalls, "begin_call", "gateway: handler runs"),
    (Dispatcher, "submit", "gateway: request is checked"),
    (RunningHost, "run_query", "agent: has the order"),
    (HostConnection, "data_received", "agent: reads the result"),
    (Request, "on_progress", "gateway: has the result"),
    (ClientConnection, "_respond", "server: has the response"),
)
_HOST_STAMPS: Final = (
    (Inbox, "is_stopped", "host: has the run"),
    (HostLoop, "_send", "host: sends the result"),
)

_stamps: Final[list[tuple[float, str]]] = []


def stamp(owner: type, function: str, label: str) -> None:
    """Take a stamp whenever a method of a class is called."""
    original = getattr(owner, function)

    @functools.wraps(original)
    def stamped(*arguments: Any, **named: Any) -> Any:
        _stamps.append((time.monotonic(), label))
        return original(*arguments, **named)

    setattr(owner, function, stamped)


async def send_requests(address: str, call: str, pause_s: float) -> None:
    """Send requests one after the other; print a stamp before and after each."""
    request = identity().request
    async with grpc.aio.insecure_channel(address) as channel:
        infer: Any = channel.unary_unary(f"{_SERVICE}/ModelInfer")
        stream: Any = channel.stream_stream(f"{_SERVICE}/ModelStreamInfer")()
        for _ in range(REQUESTS):
            await asyncio.sleep(pause_s)
            _stamps.append((time.monotonic(), _BEGIN))
            if call == "unary":
                await infer(request)
            else:
                await stream.write(request)
                await stream.read()
            _stamps.append((time.monotonic(), _END))
        stream.cancel()
    print(json.dumps(_stamps))


def run_host(stamps_file: str, arguments: list[str]) -> int:
    """Run an engine host, and write its stamps to a file at the end."""
    for each in _HOST_STAMPS:
        stamp(*each)
    code = host_main.main(arguments)
    Path(stamps_file).write_text(json.dumps(_stamps))
    return code


def stamp_hosts(stamps_file: Path) -> None:
    """Start engine hosts with stamps."""
    Launch.prepare = with_stamps(Launch.prepare, stamps_file)  # type: ignore[method-assign]  # meant


def with_stamps(prepare: Callable[..., Launch], stamps_file: Path) -> Callable[..., Launch]:
    """Return what prepares a launch of the same host with stamps."""

    def prepare_with_stamps(*arguments: Any, **named: Any) -> Launch:
        launch = prepare(*arguments, **named)
        program, _, _, *rest = launch.command
        command = (program, "-m", __spec__.name, "host", str(stamps_file), *rest)
        return dataclasses.replace(launch, command=command)

    return prepare_with_stamps


async def serve_requests(folder: Path, call: str, pause_ms: float) -> None:
    """Serve the requests of a client process, with stamps."""
    workload = identity()
    workload.build(folder / "models")
    address = f"127.0.0.1:{free_port()}"
    gateway = GatewaySettings(listen=address, hub=_LOOPBACK, http=_LOOPBACK, state=folder / "state")
    settings = ServeSettings(
        models=folder / "models", worker=WorkerSettings(models=folder / "models"), gateway=gateway
    )
    async with LocalServer(settings):
        await asyncio.sleep(_SETTLE_S)
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __spec__.name, "client", address, call, str(pause_ms)),
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        output, _ = await client.communicate()
    _stamps.extend((at, label) for at, label in json.loads(output))


def steps(stamps: list[tuple[float, str]]) -> list[tuple[str, str, float]]:
    """Return the median microseconds from each stamp to the next, and of whole requests.

    Only requests with the most frequent sequence of stamps are used, and none of the warm-up.
    """
    requests: list[list[tuple[float, str]]] = []
    for at, label in sorted(stamps):
        if label == _BEGIN:
            requests.append([])
        if requests:
            requests[-1].append((at, label))
    del requests[:_WARM_UP]
    sequences = [tuple(label for _, label in each) for each in requests]
    usual = statistics.mode(sequences)
    times = [
        [1e6 * (later - at) for (at, _), (later, _) in pairwise(request)]
        for request, sequence in zip(requests, sequences, strict=True)
        if sequence == usual
    ]
    medians = map(statistics.median, zip(*times, strict=True))
    whole = statistics.median(sum(each) for each in times)
    return [
        *((a, b, median) for (a, b), median in zip(pairwise(usual), medians, strict=True)),
        (_BEGIN, _END, whole),
    ]


def main(call: str = "unary", pause_ms: str = "0") -> None:
    """Print the steps of a request, by a unary call or on a stream."""
    with tempfile.TemporaryDirectory() as folder:
        host_stamps = Path(folder) / "host"
        for each in _SERVE_STAMPS:
            stamp(*each)
        stamp_hosts(host_stamps)
        uvloop.run(serve_requests(Path(folder), call, float(pause_ms)))
        stamps = [*_stamps, *((at, label) for at, label in json.loads(host_stamps.read_text()))]
    for begin, end, microseconds in steps(stamps):
        print(f"{microseconds:7.0f} µs  {begin} → {end}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["client", address, call, pause_ms]:
            uvloop.run(send_requests(address, call, float(pause_ms) / 1e3))
        case ["host", stamps_file, *arguments]:
            sys.exit(run_host(stamps_file, arguments))
        case [] | ["unary" | "stream"] | ["unary" | "stream", _] as arguments:
            main(*arguments)
        case _:
            sys.exit(f"usage: python -m {__spec__.name} [unary|stream] [MILLISECONDS]")
