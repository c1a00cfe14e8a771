"""A local fleet of gateway and agent processes for tests, benchmarks and demos."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import grpc

from synergai.errors import Unavailable
from synergai.v1 import fleet_pb2, fleet_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a loopback port: the system gives it to nothing else until the context ends.

    Servers that set SO_REUSEADDR, as gateways and agents do, can listen on it. Until one does,
    connections to it are refused.
    """
    with socket.socket() as holder:
        # A bound socket that does not listen excludes neither: Linux lets another socket bind the
        # port by its number if both set the option, but no longer chooses it for port 0.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


class LocalFleet:
    """A gateway and its agents as child processes on loopback ports reserved for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.gateway: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = contextlib.ExitStack()
        self.address, self.hub_address, self.http_address = (
            f"127.0.0.1:{self._ports.enter_context(reserved_port())}" for _ in range(3)
        )
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_gateway(
        self,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        *,
        models: Path | None = None,
    ) -> None:
        """Start the gateway, or restart it with the same ports and state.

        Args:
            prefix: command that runs the gateway's command, such as ``nice -n 19``.
            models: model directory of a worker in the gateway's process (``serve``); None for a
                gateway alone.

        Raises:
            Unavailable: it exited or was not ready in time; the message names its log.
        """
        ready = self.directory / "gateway.json"
        ready.unlink(missing_ok=True)
        self.gateway = self._spawn(
            "gateway",
            [
                *(("gateway",) if models is None else ("serve", str(models))),
                *("--listen", self.address),
                *("--hub", self.hub_address),
                *("--http", self.http_address),
                *("--state", str(self.directory / "gateway")),
                *options,
            ],
            prefix,
            {f"SYNERGAI_{'GATEWAY' if models is None else 'SERVE'}_READY_FILE": str(ready)},
        )
        deadline = time.monotonic() + 30.0
        while not ready.exists():
            if self.gateway.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"the gateway did not start; see {self.log('gateway')}")
            time.sleep(0.01)

    def start_agent(
        self,
        name: str,
        *,
        models: Path,
        worker_class: str = "local",
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """Start an agent, or restart it under the same name.

        Args:
            prefix: command that runs the agent's command, such as ``nice -n 19``.
        """
        self.agents[name] = self._spawn(
            name,
            [
                "agent",
                *("--gateway", self.hub_address),
                *("--models", str(models)),
                *("--worker-id", name),
                *("--worker-class", worker_class),
                *("--state", str(self.directory / name)),
                *options,
            ],
            prefix,
        )

    def wait_for_workers(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until `count` workers with usable engines, all of them inspected, are registered.

        Raises:
            Unavailable: they were not after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        state = "the gateway does not answer"
        with grpc.insecure_channel(self.address) as channel:
            fleet = fleet_pb2_grpc.FleetStub(channel)
            while True:
                with contextlib.suppress(grpc.RpcError):
                    response = fleet.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=2.0)
                    usable = [
                        worker
                        for worker in response.workers
                        if any(not engine.fault for engine in worker.engines)
                        and not any(engine.pending for engine in worker.engines)
                    ]
                    if len(usable) >= count:
                        return
                    state = _describe_workers(response.workers)
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"fewer than {count} workers had inspected their engines after "
                        f"{timeout_s:g} s ({state}); see the logs in {self.directory}"
                    )
                time.sleep(0.02)

    def log(self, name: str) -> Path:
        """Return the path of a process's log; ``gateway`` names the gateway."""
        return self.directory / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a process without warning; ``gateway`` names the gateway."""
        process = self.gateway if name == "gateway" else self.agents.pop(name)
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Terminate all processes, the agents first, then the gateway; release the ports."""
        processes = [*self.agents.values(), *([self.gateway] if self.gateway else [])]
        self.agents.clear()
        self.gateway = None
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ports.close()

    def _spawn(
        self,
        name: str,
        arguments: Sequence[str],
        prefix: Sequence[str],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[bytes]:
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                [*prefix, sys.executable, "-m", "synergai", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
            )


def _describe_workers(workers: Iterable[fleet_pb2.Worker]) -> str:
    """Say what the workers are doing, for an error."""
    states = []
    for worker in workers:
        pending = [engine.name for engine in worker.engines if engine.pending]
        usable = any(not engine.fault for engine in worker.engines)
        if pending:
            states.append(f"{worker.id} is inspecting {', '.join(pending)}")
        elif not usable:
            states.append(f"{worker.id} has no usable engine")
        else:
            states.append(f"{worker.id} is ready")
    return "; ".join(states) or "no worker is connected"
