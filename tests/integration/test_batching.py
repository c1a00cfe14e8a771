"""Dynamic batching with a real gateway, agent and model."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from synergai.oip import statistics_pb2
from synergai.oip.inference_pb2_grpc import GRPCInferenceServiceStub
from tests.cores import new_entry
from tests.tiny_onnx import floats, new_model, save_model

WIDTH, LAYERS = 1024, 4
IN_FLIGHT, REQUESTS = 16, 160
PROFILE = new_entry("layers", "local", 300.0, batch_qps=(600.0, 1200.0, 2400.0))


def build(folder: Path) -> None:
    """``layers``: x [n, 1024] through four dense layers, whose weights are read once per batch."""
    generator = np.random.default_rng(7)
    weights = {
        f"w{layer}": generator.normal(0, 1 / 32, (WIDTH, WIDTH)).astype(np.float32)
        for layer in range(LAYERS)
    }
    names = ["x", *(f"h{layer}" for layer in range(1, LAYERS)), "y"]
    nodes = [
        helper.make_node("MatMul", [names[layer], f"w{layer}"], [names[layer + 1]])
        for layer in range(LAYERS)
    ]
    x, y = floats(["n", WIDTH], "x", "y")
    save_model(folder / "model.onnx", new_model(nodes, [x], [y], weights))
    (folder / "engine.toml").write_text("max_batch = 8\n")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    directory = tmp_path_factory.mktemp("batching")
    build(directory / "models" / "layers")
    add_to_dictionary(directory / "profile.db", [PROFILE])
    with LocalFleet(directory / "fleet") as fleet:
        fleet.start_gateway(("--dictionary", str(directory / "profile.db")))
        fleet.start_agent("one", models=directory / "models", options=("--threads", "1"))
        fleet.wait_for_workers(1)
        yield fleet


async def statistics(fleet: LocalFleet) -> statistics_pb2.ModelStatistics:
    async with grpc.aio.insecure_channel(fleet.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        answer = await stub.ModelStatistics(statistics_pb2.ModelStatisticsRequest(name="layers"))
    return answer.model_stats[0]


async def test_batched_requests_get_equal_results_in_fewer_executions(
    fleet: LocalFleet,
) -> None:
    generator = np.random.default_rng(1)
    inputs: list[NDArray[np.float32]] = [
        generator.normal(size=(1, WIDTH)).astype(np.float32) for _ in range(IN_FLIGHT)
    ]
    async with synergai.Client(fleet.address) as client:
        alone = [(await client.infer("layers", {"x": each}))["y"] for each in inputs]
        before = await statistics(fleet)
        assert before.execution_count == before.inference_count == IN_FLIGHT

        async def ask(index: int) -> None:
            for _ in range(REQUESTS // IN_FLIGHT):
                result = await client.infer("layers", {"x": inputs[index]}, deadline=20.0)
                # A matrix times a vector is not summed in the order of one times a matrix.
                np.testing.assert_allclose(result["y"], alone[index], rtol=1e-3, atol=1e-5)

        async with asyncio.timeout(60):
            await asyncio.gather(*(ask(index) for index in range(IN_FLIGHT)))
    after = await statistics(fleet)
    assert after.inference_count - before.inference_count == REQUESTS
    assert after.execution_count - before.execution_count < REQUESTS
    assert max(each.batch_size for each in after.batch_stats) > 1
