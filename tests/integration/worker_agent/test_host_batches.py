import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from synergai.domain import BatchTimes, Configuration, EngineName, Fault, Outcome, Session
from synergai.oip.inference_pb2 import ModelInferResponse
from tests.integration.worker_agent.conftest import request
from tests.tiny_onnx import floats, new_model, save_model
from worker_agent.hosts.process import HostProcess
from worker_agent.ipc import RunEnded

TWICE = Session(EngineName("twice"), Configuration(1))
GAINING = BatchTimes((1.0, 1.1, 1.2, 1.3))
"""Only the ratios of the times matter to the host."""


@pytest.fixture
def batching(models: Path, tmp_path: Path) -> Path:
    """A model directory with ``twice`` and a ``max_batch`` of 8."""
    shutil.copytree(models / "twice", tmp_path / "twice")
    (tmp_path / "twice" / "engine.toml").write_text("max_batch = 8\n")
    return tmp_path


@pytest.fixture
async def host(batching: Path) -> AsyncIterator[HostProcess]:
    host = await HostProcess.start(batching, TWICE)
    yield host
    await host.close()


class Queries:
    """Queries fed to a host in one turn of the event loop, and their results."""

    def __init__(self, host: HostProcess) -> None:
        self._host = host
        self._ends: list[asyncio.Future[RunEnded]] = []
        self.order: list[int] = []

    def query(
        self, request: bytes, batch_times: BatchTimes | None = None, due: float = math.inf
    ) -> int:
        end: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
        number = len(self._ends)
        self._ends.append(end)

        def ended(message: RunEnded) -> None:
            self.order.append(number)
            end.set_result(message)

        return self._host.run_query(request, ended, batch_times, due)

    async def ends(self) -> list[RunEnded]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*self._ends)


def tensors(ended: RunEnded) -> list[tuple[str, list[int], bytes]]:
    response = ModelInferResponse.FromString(bytes(ended.response))
    assert len(response.outputs) == len(response.raw_output_contents)
    return [
        (output.name, list(output.shape), raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 3000])
async def test_answers_of_a_batch_are_those_of_its_queries_alone_in_order(
    host: HostProcess, rows: int
) -> None:
    requests = [request(np.full((rows, 2), number, np.float32)) for number in range(6)]
    alone, together = Queries(host), Queries(host)
    for each in requests:
        alone.query(each)
    singles = await alone.ends()
    for each in requests:
        together.query(each, GAINING)
    batched = await together.ends()
    assert [tensors(end) for end in batched] == [tensors(end) for end in singles]
    assert together.order == [*range(6)]


async def test_queries_that_wait_are_computed_together(host: HostProcess) -> None:
    queries = Queries(host)
    for number in range(8):
        queries.query(request([[number, 1]]), GAINING)
    batches = [end.tally.batch for end in await queries.ends()]
    assert batches == [8] * 8


async def test_only_queries_with_equal_keys_and_enough_time_share_a_batch(
    host: HostProcess,
) -> None:
    queries = Queries(host)
    queries.query(request([[0, 1]]), GAINING)
    queries.query(request([[1, 1]]), GAINING)
    queries.query(request([[2, 1]], "z"), GAINING)
    queries.query(request([[3, 1]], "z"), GAINING)
    queries.query(request([[4, 1]], "z"), GAINING, time.monotonic() + 1.15)
    queries.query(request([[5, 1]], "z"))
    batches = [end.tally.batch for end in await queries.ends()]
    assert batches == [2, 2, 2, 2, 1, 1]


async def test_query_with_wrong_tensors_fails_alone(host: HostProcess) -> None:
    queries = Queries(host)
    for array in ([[1, 1]], [[2, 2]], [[3, 3, 3]], [[4, 4]]):
        queries.query(request(array), GAINING)
    ends = await queries.ends()
    assert [end.outcome for end in ends] == [
        *[Outcome.COMPLETED] * 2,
        Outcome.FAILED,
        Outcome.COMPLETED,
    ]
    assert ends[2].fault is Fault.BAD_INPUT
    assert queries.order == [0, 1, 2, 3]


async def test_stopped_query_is_in_no_batch(host: HostProcess) -> None:
    queries = Queries(host)
    runs = [queries.query(request([[number, 1]]), GAINING) for number in range(4)]
    host.stop_run(runs[1])
    ends = await queries.ends()
    assert [end.outcome is Outcome.STOPPED for end in ends] == [False, True, False, False]
    assert [end.tally.batch for end in ends if end.tally.done] == [1, 2, 2]


async def test_engine_with_dependent_rows_is_detected_and_not_batched(
    tmp_path: Path,
) -> None:
    """The model returns all rows twice, contrary to its definition."""
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    model = new_model([node], floats(["n", 2], "x"), floats(["m", 2], "y"))
    save_model(tmp_path / "again" / "model.onnx", model)
    (tmp_path / "again" / "engine.toml").write_text("max_batch = 8\n")
    host = await HostProcess.start(tmp_path, Session(EngineName("again"), Configuration(1)))
    queries = Queries(host)
    for number in range(4):
        queries.query(request([[number, 1]]), GAINING)
    answered = await queries.ends()
    await host.close()
    assert [end.tally.batch for end in answered] == [1] * 4
    first = [np.frombuffer(tensors(end)[0][2], np.float32).tolist() for end in answered]
    assert first == [[number, 1] * 2 for number in range(4)]


async def run_range(host: HostProcess, count: int, batch: int) -> RunEnded:
    end: asyncio.Future[RunEnded] = asyncio.get_running_loop().create_future()
    host.run_samples(0, count, lambda _: None, end.set_result, batch=batch)
    async with asyncio.timeout(60):
        return await end


async def test_range_in_batches_has_the_accuracy_of_its_queries_alone(batching: Path) -> None:
    samples = np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0]]
    np.savez(batching / "twice" / "samples.npz", x=samples, labels=np.array([0, 1, 0, 0, 1]))
    host = await HostProcess.start(batching, TWICE)
    alone, together = await run_range(host, 20, 1), await run_range(host, 20, 8)
    await host.close()
    assert (together.outcome, together.tally.batch) == (Outcome.COMPLETED, 8)
    for tally in (alone.tally, together.tally):
        assert (tally.done, tally.labelled, tally.correct) == (20, 20, 12)


async def start_with_little_memory(models: Path) -> HostProcess:
    """Start an engine with a `max_batch` of 8 and memory for 3 rows."""
    folder = models / "small"
    folder.mkdir()
    definition = 'backend = "emulated"\nfile = "model.toml"\nmax_batch = 8\n'
    (folder / "engine.toml").write_text(definition)
    (folder / "model.toml").write_text(
        "[[configurations]]\nthreads = 1\nquery_s = 0\nsetup_s = 0\nmost_rows = 3\n"
    )
    return await HostProcess.start(models, Session(EngineName("small"), Configuration(1)))


async def test_batch_that_memory_lacks_for_is_halved(tmp_path: Path) -> None:
    host = await start_with_little_memory(tmp_path)
    queries = Queries(host)
    for number in range(8):
        queries.query(request([number]), GAINING)
    ended = await queries.ends()
    together = await run_range(host, 20, 8)
    await host.close()
    assert [end.tally.batch for end in ended] == [2] * 8
    assert [np.frombuffer(tensors(end)[0][2], np.float32).tolist() for end in ended] == [
        [number] for number in range(8)
    ]
    assert (together.outcome, together.tally.done) == (Outcome.COMPLETED, 20)


async def test_query_that_memory_lacks_for_says_so(tmp_path: Path) -> None:
    host = await start_with_little_memory(tmp_path)
    queries = Queries(host)
    queries.query(request([1.0] * 4))
    queries.query(request([1.0]))
    failed, answered = await queries.ends()
    await host.close()
    assert failed.fault is Fault.OUT_OF_MEMORY
    assert answered.outcome is Outcome.COMPLETED
