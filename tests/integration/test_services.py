"""Shutdown of services by signals."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator

import pytest

SERVICE = """
import asyncio, gc, sys
from synergai.runtime.service import run_service

class Lamp:
    async def __aenter__(self):
        print("starting", flush=True)
        if "slow" in sys.argv:
            await asyncio.Event().wait()
        self.stopped = asyncio.Event()
        print("started", flush=True)
        return self

    async def __aexit__(self, *_):
        print("left", flush=True)

    def stop(self):
        print("stopping", flush=True)
        if "stubborn" not in sys.argv:
            self.stopped.set()

    async def wait_stopped(self):
        if "tidy" in sys.argv:
            print(gc.get_freeze_count() > 1000, flush=True)
        await self.stopped.wait()

run_service(Lamp, "info")
print("over", flush=True)
"""


@pytest.fixture
async def processes() -> AsyncIterator[list[asyncio.subprocess.Process]]:
    started: list[asyncio.subprocess.Process] = []
    yield started
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def start(
    processes: list[asyncio.subprocess.Process], kind: str = ""
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVICE, kind, stdout=asyncio.subprocess.PIPE
    )
    processes.append(process)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"starting\n"
    return process, process.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_a_service_gracefully(
    number: signal.Signals, processes: list[asyncio.subprocess.Process]
) -> None:
    process, output = await start(processes)
    await output.readline()
    process.send_signal(number)
    assert await output.read() == b"stopping\nleft\nover\n"
    assert await process.wait() == 0


async def test_signal_stops_a_service_during_startup(
    processes: list[asyncio.subprocess.Process],
) -> None:
    process, output = await start(processes, "slow")
    process.send_signal(signal.SIGTERM)
    assert await output.read() == b"over\n"
    assert await process.wait() == 0


async def test_second_signal_exits_at_once(
    processes: list[asyncio.subprocess.Process],
) -> None:
    process, output = await start(processes, "stubborn")
    await output.readline()
    process.send_signal(signal.SIGTERM)
    assert await output.readline() == b"stopping\n"
    process.send_signal(signal.SIGINT)
    assert await output.read() == b""
    assert await process.wait() == 130


async def test_objects_created_during_startup_are_frozen_for_the_collector(
    processes: list[asyncio.subprocess.Process],
) -> None:
    process, output = await start(processes, "tidy")
    await output.readline()
    assert await output.readline() == b"True\n"
    process.send_signal(signal.SIGTERM)
    await process.wait()
