"""A real agent process with a fake hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.limits import HUB_VERSION
from tests.integration.worker_agent.conftest import request
from tests.integration.worker_agent.fake_hub import ONE, AssignmentFields, FakeHub
from tests.tiny_tflite import save_sum

FOREVER = 10**12
TWO = common_pb2.Configuration(threads=2)


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    async with hub.listening():
        yield hub


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State directory shared by all tests, so that engines are described once."""
    return tmp_path_factory.mktemp("state")


@contextlib.asynccontextmanager
async def running_agent(
    hub: FakeHub, models: Path, state: Path, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synergai", "agent", "--gateway", hub.address),
        *("--models", str(models), "--state", str(state)),
        *("--worker-id", "tester", "--worker-class", "bench", "--threads", "1,2"),
        *options,
        env={**os.environ, "SYNERGAI_AGENT_MODELS_LOOK_S": "0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        output, _ = await process.communicate()
        assert b"Traceback" not in output, output.decode()


@pytest.fixture
async def agent(
    hub: FakeHub, models: Path, state: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    async with running_agent(hub, models, state) as process:
        async with asyncio.timeout(60):
            await hub.registrations.get()
        yield process


def y_of(response: bytes) -> list[float]:
    raw = ModelInferResponse.FromString(response).raw_output_contents[0]
    values: list[float] = np.frombuffer(raw, np.float32).tolist()
    return values


async def test_agent_registers_itself_and_its_engines(
    hub: FakeHub, models: Path, state: Path
) -> None:
    hub.heartbeat_s = 0.2
    async with running_agent(hub, models, state):
        register = await hub.registrations.get()
        await hub.heard("heartbeat")
    assert (register.worker_id, register.worker_class) == ("tester", "bench")
    assert register.protocol_version == HUB_VERSION
    assert register.cores > 0
    assert register.memory_bytes > 1 << 28
    assert list(register.configurations) == [ONE, TWO]
    faults = {engine.name: engine.fault for engine in register.engines}
    assert {name for name, fault in faults.items() if fault} == {
        "truncated",
        "nothing",
        "impossible",
        "unspeakable",
    }
    assert hub.connection_ids == ["secret"]


async def test_agent_that_cannot_write_its_ready_file_does_not_register(
    hub: FakeHub, models: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGAI_AGENT_READY_FILE", str(tmp_path / "nowhere" / "ready"))
    async with running_agent(hub, models, state, "--pin", "twice=threads=1") as process:
        async with asyncio.timeout(60):
            assert await process.wait() == 1
    assert hub.registrations.empty()


@pytest.mark.usefixtures("agent")
async def test_second_agent_on_a_state_directory_is_refused(
    hub: FakeHub, models: Path, state: Path
) -> None:
    async with running_agent(hub, models, state) as second:
        output, _ = await second.communicate()
    assert second.returncode == 1
    assert b"another agent uses the state directory" in output


async def test_heartbeats_count_up_on_both_connections_and_missing_answers_end_them(
    hub: FakeHub, models: Path, state: Path
) -> None:
    hub.heartbeat_s = 0.1
    async with running_agent(hub, models, state) as agent, asyncio.timeout(30):
        await hub.registrations.get()
        first = (await hub.heard("heartbeat")).heartbeat
        second = (await hub.heard("heartbeat")).heartbeat
        assert second.sequence == first.sequence + 1
        assert second.rss_bytes >= psutil.Process(agent.pid).memory_info().rss // 2
        await hub.empty_reports.acquire()
        hub.acknowledges = False
        await hub.registrations.get()


@pytest.mark.usefixtures("agent")
async def test_requests_come_back_in_order_as_responses(hub: FakeHub) -> None:
    hub.assign(1, "twice", count=3, requests=[request([[i, i]]) for i in range(3)])
    started = await hub.reports.get()
    assert isinstance(started, hub_pb2.Started)
    assert started.setup_s > 0.05
    responses: list[bytes] = []
    while isinstance(report := await hub.reports.get(), hub_pb2.Progress):
        responses += report.responses
    assert isinstance(report, hub_pb2.Ended)
    responses += report.progress.responses
    assert [y_of(response) for response in responses] == [[0, 0], [2, 2], [4, 4]]
    assert report.outcome == hub_pb2.OUTCOME_COMPLETED
    assert report.progress.done == 3
    assert report.progress.compute_s > 0


async def test_sample_queries_count_labels_in_hosts_and_agents_load_no_runtime(
    hub: FakeHub, agent: asyncio.subprocess.Process
) -> None:
    hub.assign(5, "labelled", first=2, count=8)
    progress = (await hub.ended(5)).progress
    assert (progress.done, progress.labelled, progress.correct) == (8, 8, 6)
    assert list(progress.responses) == []
    hub.assign(6, "twice", requests=[request([[1, 1]])])
    await hub.ended(6)
    maps = await asyncio.to_thread(_mapped_files, agent.pid)
    assert not [path for path in maps if "numpy" in path or "onnxruntime" in path]
    assert psutil.Process(agent.pid).memory_info().rss < 80 << 20


def _mapped_files(pid: int) -> set[str]:
    return {mapped.path for mapped in psutil.Process(pid).memory_maps()}


@pytest.mark.usefixtures("agent")
async def test_loaded_session_is_reported_with_its_times(hub: FakeHub) -> None:
    session = common_pb2.Session(engine="twice", configuration=TWO)
    hub.order(hub_pb2.GatewayControl(load=hub_pb2.LoadEngine(session=session)))
    changed = (await hub.heard("session_changed")).session_changed
    assert (changed.session, changed.resident, changed.fault) == (session, True, "")
    assert changed.backend_start_s > 0
    hub.assign(1, "twice", configuration=TWO, requests=[request([[1, 1]])])
    assert isinstance(await hub.reports.get(), hub_pb2.Ended)
    hub.order(hub_pb2.GatewayControl(unload=hub_pb2.UnloadEngine(session=session)))
    assert not (await hub.heard("session_changed")).session_changed.resident


IMPOSSIBLE: list[tuple[str, AssignmentFields, hub_pb2.Fault.ValueType, str]] = [
    ("unknown", {}, hub_pb2.FAULT_UNKNOWN_ENGINE, "no engine 'unknown'"),
    ("truncated", {}, hub_pb2.FAULT_ENGINE_BROKEN, "model.onnx is damaged"),
    ("twice", {"requests": [request([[1, 1]], name="z")]}, hub_pb2.FAULT_BAD_INPUT, "no input 'z'"),
    ("twice", {"requests": [b"\xff"]}, hub_pb2.FAULT_BAD_INPUT, "not a valid"),
    ("twice", {"count": 2, "requests": [b""]}, hub_pb2.FAULT_BAD_INPUT, "2 queries came with 1"),
    (
        "twice",
        {"configuration": common_pb2.Configuration(threads=7)},
        hub_pb2.FAULT_CONFIGURATION_UNUSABLE,
        "threads=7 is not available on this worker",
    ),
]


@pytest.mark.usefixtures("agent")
async def test_session_or_assignment_that_cannot_run_fails_with_its_reason(hub: FakeHub) -> None:
    for engine in ("unknown", "truncated"):
        session = common_pb2.Session(engine=engine, configuration=TWO)
        hub.order(hub_pb2.GatewayControl(load=hub_pb2.LoadEngine(session=session)))
        changed = (await hub.heard("session_changed")).session_changed
        assert (changed.session, changed.resident) == (session, False)
        assert "cannot be loaded here with threads=2" in changed.fault
    for number, (engine, fields, fault, expected) in enumerate(IMPOSSIBLE):
        hub.assign(number, engine, **fields)
        ended = await hub.ended(number)
        assert (ended.outcome, ended.fault) == (hub_pb2.OUTCOME_FAILED, fault)
        assert expected in ended.detail


async def test_agent_reconnects_with_its_sessions_and_drops_its_assignments(
    hub: FakeHub, agent: asyncio.subprocess.Process
) -> None:
    hub.assign(1, "twice", count=FOREVER)
    await hub.progress()
    await hub.stop()
    await hub.start()
    register = await hub.registrations.get()
    assert [session.engine for session in register.sessions] == ["twice"]
    hub.reports = asyncio.Queue()
    hub.assign(2, "twice", count=10)
    started = await hub.reports.get()
    assert isinstance(started, hub_pb2.Started)
    assert started.assignment_id == 2
    assert agent.returncode is None


async def test_terminated_agent_completes_its_assignments(
    hub: FakeHub, agent: asyncio.subprocess.Process
) -> None:
    hub.assign(1, "twice", count=20_000)
    await hub.progress()
    agent.send_signal(signal.SIGTERM)
    await hub.heard("draining")
    ended = await hub.ended(1)
    assert (ended.outcome, ended.progress.done) == (hub_pb2.OUTCOME_COMPLETED, 20_000)
    assert await agent.wait() == 0


async def test_drain_is_bounded(hub: FakeHub, models: Path, state: Path) -> None:
    async with running_agent(hub, models, state, "--drain-s", "0.2") as agent:
        await hub.registrations.get()
        hub.assign(1, "twice", count=FOREVER)
        await hub.progress()
        agent.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await agent.wait() == 0


async def test_no_host_outlives_a_killed_agent(
    hub: FakeHub, agent: asyncio.subprocess.Process
) -> None:
    hub.assign(1, "twice", count=FOREVER)
    await hub.progress()
    hosts = psutil.Process(agent.pid).children()
    for host in hosts:
        host.suspend()  # as one that hangs, and does not see that its socket is closed
    os.kill(agent.pid, signal.SIGKILL)
    _, alive = await asyncio.to_thread(psutil.wait_procs, hosts, 5)
    for host in alive:
        host.kill()
    assert hosts
    assert not alive


async def test_added_engine_is_served_and_a_removed_one_is_not(
    hub: FakeHub, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    async with asyncio.timeout(30), running_agent(hub, models, tmp_path / "state"):
        assert not (await hub.registrations.get()).engines
        (models / "sum").mkdir(parents=True)  # not even the model directory was there
        save_sum(models / "sum.new")
        (models / "sum.new").rename(models / "sum" / "m.tflite")
        engine = (await hub.heard("engine_changed")).engine_changed.engine
        while engine.pending or not engine.backend:  # found, or seen while it was empty
            engine = (await hub.heard("engine_changed")).engine_changed.engine
        assert (engine.name, engine.backend, engine.fault) == ("sum", "tflite", "")
        hub.assign(1, "sum", count=3)
        assert (await hub.ended(1)).outcome == hub_pb2.OUTCOME_COMPLETED
        shutil.rmtree(models / "sum")
        assert "was removed" in (await hub.heard("engine_changed")).engine_changed.engine.fault
        hub.assign(2, "sum")
        assert (await hub.ended(2)).fault == hub_pb2.FAULT_ENGINE_BROKEN
        await hub.stop()
        await hub.start()
        assert not (await hub.registrations.get()).engines


async def test_loaded_engine_serves_until_its_changed_file_is_checked_and_loaded(
    hub: FakeHub, tmp_path: Path
) -> None:
    models, file = tmp_path / "models", tmp_path / "models" / "sum" / "m.tflite"
    file.parent.mkdir(parents=True)
    save_sum(file, width=512, matrix=True)  # weights that a host may read as late as for a query
    content = file.read_bytes()
    async with asyncio.timeout(60), running_agent(hub, models, tmp_path / "state"):
        await hub.registrations.get()
        hub.assign(1, "sum")
        assert (await hub.ended(1)).outcome == hub_pb2.OUTCOME_COMPLETED
        first = (await hub.heard("session_changed")).session_changed
        file.write_bytes(content[:100])
        engine = (await hub.heard("engine_changed")).engine_changed.engine
        assert engine.fault == ""
        [unused] = engine.unused_variants
        assert "m.tflite" in unused.reason
        hub.assign(2, "sum", count=10)
        assert (await hub.ended(2)).outcome == hub_pb2.OUTCOME_COMPLETED
        hub.assign(3, "sum", configuration=TWO)
        assert (await hub.ended(3)).fault == hub_pb2.FAULT_CONFIGURATION_UNUSABLE
        file.write_bytes(content)
        while not (changed := (await hub.heard("session_changed")).session_changed).resident:
            pass
        assert changed.session == first.session
        engine = (await hub.heard("engine_changed")).engine_changed.engine
        assert (engine.fault, len(engine.unused_variants)) == ("", 0)
        for number, configuration in ((4, ONE), (5, TWO)):
            hub.assign(number, "sum", configuration=configuration)
            assert (await hub.ended(number)).outcome == hub_pb2.OUTCOME_COMPLETED
