"""The process of a peer while it is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.client import Client, WrongResponse
from benchmarks.ports import free_port
from synergai.errors import Unavailable
from synergai.models.directory import ModelDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.registry import Peer
    from benchmarks.workloads import Workload

ROOT = Path(__file__).parents[2]
START_S = 90.0
END_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPeer:
    """A peer in its own process group.

    Attributes:
        peer: the peer.
        address: address of its gRPC server.
        process: its main process.
        log: output of its processes.
    """

    peer: Peer
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    async def wait_until_correct(self, workload: Workload) -> None:
        """Wait until it returns a correct response.

        Raises:
            Unavailable: it exited or timed out; the message has the last line of its output.
        """
        title = self.peer.title
        deadline = time.monotonic() + START_S
        while reason := await self.failure_reason(workload):
            if self.process.poll() is not None:
                raise Unavailable(f"{title} exited: {self._last_line()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"no response from {title} after {START_S:g} s: {reason}")
            await asyncio.sleep(0.2)

    async def failure_reason(self, workload: Workload, *, stream: bool = False) -> str | None:
        """Send one request on a new channel; return the error, or None on success."""
        client = Client(self.address, workload, self.peer.dialect)
        try:
            await (client.stream if stream else client.unary)(1, 0.01)
        except WrongResponse as error:
            return str(error)
        finally:
            await client.close()
        return None

    def stop(self) -> None:
        """Terminate it, then kill what is left of its process group."""
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _last_line(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


@contextlib.contextmanager
def run_peer(
    peer: Peer, python: Path, models: Path, engines: Sequence[str], scratch: Path
) -> Iterator[RunningPeer]:
    """Run a peer that serves `engines`, with its files in `scratch`."""
    scratch.mkdir(parents=True)
    port = free_port()
    directory = ModelDirectory(models)
    served = [f"{engine}={directory.get(engine).file.resolve()}" for engine in engines]
    log_file = scratch / "peer.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", peer.module, str(port), str(scratch.resolve()), *served],
            cwd=ROOT,
            env={
                **os.environ,
                # For child processes with another working directory.
                "PYTHONPATH": str(ROOT),
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    started = RunningPeer(peer=peer, address=f"127.0.0.1:{port}", process=process, log=log_file)
    try:
        yield started
    finally:
        started.stop()
