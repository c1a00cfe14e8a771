"""Time from the command to the first correct answer, with ten small models in the folder."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.client import TRITON, Client, Dialect, WrongResponse
from benchmarks.peers.environment import ensure_installed
from benchmarks.peers.peer_process import ROOT, run_peer
from benchmarks.ports import wait_for_port
from benchmarks.report import table
from benchmarks.servers import SERVE, THREADS
from benchmarks.workloads import Workload, identity
from demo.local_fleet import LocalFleet
from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.peers.registry import Peer

MODELS: Final = 10
TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.005


async def measure(peers: Sequence[Peer], cache: Path, folder: Path, rounds: int) -> str:
    """Start every server in turn, `rounds` times; return the medians as Markdown."""
    for package in ("synergai", "gateway", "worker_agent"):  # as installing a package does
        compileall.compile_dir(ROOT / package, quiet=1)
    workload, models = identity(), folder / "models"
    workload.build(models)
    engines = [workload.engine]
    for number in range(1, MODELS):
        engines.append(f"{workload.engine}_{number}")
        shutil.copytree(models / workload.engine, models / engines[-1])
    taken: dict[str, list[float]] = {}
    for number in range(rounds):
        state = folder / f"serve-{number}"
        for row in (f"{SERVE}, first start", f"{SERVE}, later start"):
            taken.setdefault(row, []).append(await _serve_s(state, models, workload))
        for peer in peers:
            with contextlib.suppress(Unavailable, WrongResponse):
                python = ensure_installed(peer, cache)
                began = time.perf_counter()
                scratch = folder / f"{peer.name}-{number}"
                with run_peer(peer, python, models, engines, scratch) as started:
                    await _first_answer(started.address, workload, peer.dialect)
                    taken.setdefault(peer.title, []).append(time.perf_counter() - began)
    rows = [[row, f"{statistics.median(each):.2f} s"] for row, each in taken.items()]
    note = (
        f"From the command to the first correct answer of one of {MODELS} identity models; "
        f"median of {rounds}. The first start of `serve` inspects the models, later ones know them."
    )
    return "\n\n".join(("### Start", note, table(["", "first answer"], rows)))


async def _serve_s(state: Path, models: Path, workload: Workload) -> float:
    began = time.perf_counter()
    with LocalFleet(state) as fleet:
        fleet.start_gateway(("--threads", str(THREADS)), models=models)
        await _first_answer(fleet.address, workload, TRITON)
        return time.perf_counter() - began


async def _first_answer(address: str, workload: Workload, dialect: Dialect) -> None:
    """Send requests until one is answered correctly.

    Raises:
        Unavailable: there was no correct answer in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        # A channel that was refused would wait before it connects again.
        with contextlib.suppress(Unavailable):
            await asyncio.to_thread(wait_for_port, address, TIMEOUT_S)
            client = Client(address, workload, dialect)
            try:
                await client.unary(1, POLL_S)
            except WrongResponse:
                await asyncio.sleep(POLL_S)
            else:
                return
            finally:
                await client.close()
    raise Unavailable(f"no correct answer from {address} after {TIMEOUT_S:g} s")
