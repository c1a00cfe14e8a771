"""The agent on ARM64: its aarch64 wheels in a Debian root under user-mode emulation.

The emulated agent serves queries through a gateway that runs natively.
"""

import asyncio
import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import pytest

from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai import Client
from synergai.domain import EngineName
from tests.acceptance import debian_root

EMULATOR: Final = "qemu-aarch64-static"
ENGINE: Final = EngineName("onnx_digits")
JOIN_S: Final = 300.0
"""Long, because the emulated agent inspects each engine in an engine host before it registers."""


@pytest.fixture(scope="module")
def root() -> debian_root.DebianRoot:
    root = debian_root.DebianRoot(debian_root.CACHE / "acceptance" / "arm64", "arm64", EMULATOR)
    packages = {"debootstrap": "debootstrap", EMULATOR: "qemu-user-static", "proot": "proot"}
    try:
        debian_root.require_programs({**packages, "dpkg-deb": "dpkg"})
        root.create(("python3", "python3-venv"))
    except debian_root.MissingPrerequisite as error:
        pytest.skip(str(error))
    began = time.monotonic()
    root.install("agent,onnxruntime", "aarch64")
    print(f"\ninstalled from aarch64 wheels in {time.monotonic() - began:.0f} s")
    shutil.rmtree(root.path / "models", ignore_errors=True)
    zoo.build(ENGINE, root.path / "models")
    return root


async def measure(address: str) -> tuple[float, float]:
    """Return the seconds to the first response, including loading, and the rate of a job."""
    async with Client(address) as client:
        engine = await client.engine(ENGINE)
        shape = [max(1, size) for size in engine.inputs[0].shape]
        began = time.monotonic()
        result = await client.infer(ENGINE, {engine.inputs[0].name: np.zeros(shape, np.float32)})
        first_s = time.monotonic() - began
        assert all(np.isfinite(output).all() for output in result.outputs.values())
        job = await (await client.submit(ENGINE, queries=450, qos=120.0)).wait()
    assert job.labelled == 450
    assert job.correct / job.labelled > 0.95  # the same accuracy as without emulation
    assert job.actual_s
    return first_s, job.queries_done / job.actual_s


@contextlib.contextmanager
def running_agent(root: debian_root.DebianRoot, hub: str, log: Path) -> Iterator[psutil.Popen]:
    """Run an emulated agent that connects to `hub`."""
    command = root.command(
        *(f"{debian_root.PROGRAMS}/synergai", "agent", "--gateway", hub, "--models", "/models"),
        *("--state", "/var/lib/agent", "--worker-id", "arm", "--worker-class", "arm64"),
        *("--threads", "1"),
    )
    with log.open("wb") as output:
        proot = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield proot
    finally:
        for process in proot.children(recursive=True):  # proot does not forward signals
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        proot.wait(30)


def test_an_arm64_agent_serves_queries_through_a_native_gateway(
    root: debian_root.DebianRoot, tmp_path: Path
) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        began = time.monotonic()
        with running_agent(root, fleet.hub_address, fleet.log("arm")) as proot:
            fleet.wait_for_workers(1, timeout_s=JOIN_S)
            joined_s = time.monotonic() - began
            (agent,) = proot.children()
            idle_mb = agent.memory_info().rss / 2**20
            first_s, rate = asyncio.run(measure(fleet.address))
    print(
        f"\nregistered after {joined_s:.1f} s with {idle_mb:.0f} MB, including the emulator; "
        f"first response after {first_s:.1f} s; {rate:,.0f} queries/s"
    )
