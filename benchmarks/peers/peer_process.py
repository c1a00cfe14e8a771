"""Running a peer while it is measured."""

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

from benchmarks.client import Client, WrongAnswer
from synergai.errors import Unavailable
from synergai.models.directory import ModelDirectory
from synergai.testing import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.registry import Peer
    from benchmarks.workloads import Workload

ROOT = Path(__file__).parents[2]
START_S = 90.0
END_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPeer:
    """A peer in a process group of its own.

    Attributes:
        peer: which one.
        address: where it serves gRPC.
        process: what was started.
        log: what it and its children print.
    """

    peer: Peer
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    async def wait_until_right(self, workload: Workload) -> None:
        """Wait until it answers as it should.

        Raises:
            Unavailable: it ended, or does not answer in time; with the last that it said.
        """
        title = self.peer.title
        deadline = time.monotonic() + START_S
        while reason := await self.why_not(workload):
            if self.process.poll() is not None:
                raise Unavailable(f"{title} ended: {self._last_words()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"{title} does not answer after {START_S:g} s: {reason}")
            await asyncio.sleep(0.2)

    async def why_not(self, workload: Workload, *, stream: bool = False) -> str | None:
        """Why it does not answer a request on a channel of its own; None if it does."""
        client = Client(self.address, workload, self.peer.dialect)
        try:
            await (client.stream if stream else client.unary)(1, 0.01)
        except WrongAnswer as error:
            return str(error)
        finally:
            await client.close()
        return None

    def end(self) -> None:
        """Ask it to end; then end whatever is left of its group."""
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _last_words(self) -> str:
        said = [line for line in self.log.read_text().splitlines() if line.strip()]
        return said[-1] if said else "without a word"


@contextlib.contextmanager
def running(
    peer: Peer, python: Path, models: Path, engines: Sequence[str], scratch: Path
) -> Iterator[RunningPeer]:
    """Run a peer that serves `engines`, with everything that it writes in `scratch`."""
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
                # For the children that a server starts elsewhere.
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
        started.end()
