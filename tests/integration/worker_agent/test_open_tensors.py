"""Tensors whose rank, or whose number of strings, only the request determines."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import TensorType
from numpy.typing import NDArray
from onnx import TensorProto, helper

import synergai
from demo.local_fleet import LocalFleet
from synergai.domain import UNKNOWN_RANK
from tests.http1 import json_of
from tests.integration.worker_agent.conftest import save
from tests.tiny_tflite import save_reshape, save_texts


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A fleet with ``onnx`` and ``lite``, of unknown rank, and ``texts`` with strings [n]."""
    models = tmp_path_factory.mktemp("models")
    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"}
    save(models / "onnx", [helper.make_node("Neg", ["x"], ["y"])], [value["x"]], [value["y"]])
    for name in ("lite", "texts"):
        (models / name).mkdir()
    save_reshape(models / "lite" / "m.tflite", TensorType.FLOAT32, [], [-1])
    save_texts(models / "texts" / "m.tflite", -1, 1)
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as running:
        running.start_gateway(models=models)
        running.wait_for_workers(1)
        yield running


def post(fleet: LocalFleet, engine: str, tensor: dict[str, Any]) -> dict[str, Any]:
    """Return the output of an engine with one input, over REST."""
    answer = json_of(fleet.http_address, f"/v2/models/{engine}/infer", {"inputs": [tensor]})
    output: dict[str, Any] = answer["outputs"][0]
    return output


@pytest.mark.parametrize("engine", ["onnx", "lite"])
async def test_tensor_of_any_rank_is_computed(fleet: LocalFleet, engine: str) -> None:
    sign = 1 if engine == "lite" else -1
    async with synergai.Client(fleet.address) as client:
        described = await client.engine(engine)
        assert (described.inputs[0].shape, described.unverified) == (UNKNOWN_RANK, "")
        for shape in ((), (3,), (1, 2), (2, 1, 3), (1, 2, 1, 2)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            result = await client.infer(engine, {"x": array})
            expected = sign * (array.reshape(-1) if engine == "lite" else array)
            assert result["y"].tolist() == expected.tolist()


@pytest.mark.parametrize("engine", ["onnx", "lite"])
def test_rest_client_sends_any_rank_and_learns_that_it_may(fleet: LocalFleet, engine: str) -> None:
    for shape in ([], [2], [2, 2, 1]):
        data = [1.0] * int(np.prod(shape))
        tensor = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
        assert len(post(fleet, engine, tensor)["data"]) == len(data)
    metadata = json_of(fleet.http_address, f"/v2/models/{engine}")
    assert metadata["inputs"][0]["shape"] == [-1]
    assert "x" in json.loads(metadata["properties"]["unknown_rank"])


async def test_any_number_of_strings_is_computed_for_all_clients(fleet: LocalFleet) -> None:
    async with synergai.Client(fleet.address) as client:
        for count in (1, 2, 5, 1):
            texts: NDArray[Any] = np.array([b"x" * each for each in range(count)], object)
            result = await client.infer("texts", {"x": texts})
            assert result["y"].tolist() == [[text] for text in texts]
    for count in (3, 1):
        tensor = {"name": "x", "datatype": "BYTES", "shape": [count], "data": ["a"] * count}
        assert post(fleet, "texts", tensor)["shape"] == [count, 1]
