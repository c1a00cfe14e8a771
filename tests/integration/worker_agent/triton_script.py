"""An unmodified tritonclient against the agent named by the first argument.

It makes the calls of Triton's perf_analyzer in the same order, then those of model control. It runs
in its own process: its stubs and ours register the same protobuf package.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import tritonclient.grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

Client: TypeAlias = tritonclient.grpc.InferenceServerClient
Answers: TypeAlias = queue.Queue[
    tuple[tritonclient.grpc.InferResult, InferenceServerException | None]
]

ENGINE = "twice"
VALUES = np.array([[1, 2]], np.float32)
REQUESTS = 20


def inputs() -> list[tritonclient.grpc.InferInput]:
    tensor = tritonclient.grpc.InferInput("x", VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    return [tensor]


def status_of(call: Callable[[], object]) -> str:
    try:
        call()
    except InferenceServerException as failure:
        return str(failure.status())
    raise AssertionError(call)


def statistics(client: Client) -> service_pb2.ModelStatistics:
    (found,) = client.get_inference_statistics(ENGINE).model_stats
    return found


def profile(client: Client) -> None:
    """Measure as perf_analyzer does, by the difference of two statistics."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert {"model_configuration", "statistics"} <= set(client.get_server_metadata().extensions)
    assert client.is_model_ready(ENGINE)
    assert not client.is_model_ready("unknown")
    assert client.get_model_metadata(ENGINE).inputs[0].name == "x"
    config = client.get_model_config(ENGINE, as_json=True)["config"]
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "2"]}]
    before = statistics(client)
    for _ in range(REQUESTS):
        client.infer(ENGINE, inputs())
    answers: Answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(REQUESTS):
        client.async_stream_infer(ENGINE, inputs(), request_id=str(number))
    for number in range(REQUESTS):
        result, error = answers.get(timeout=10)
        assert error is None, error
        assert result.get_response().id == str(number), "responses are in order"
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * VALUES)
    client.stop_stream()
    after = statistics(client)
    assert after.inference_count - before.inference_count == 2 * REQUESTS
    assert after.execution_count - before.execution_count == 2 * REQUESTS
    spent = after.inference_stats
    assert spent.success.count == spent.queue.count == after.inference_count
    parts_ns = spent.queue.ns + spent.compute_infer.ns
    assert abs(spent.success.ns - parts_ns) <= 1000 < parts_ns, "sums of rounded floats"
    assert after.last_inference > 1.6e12


def control(client: Client) -> None:
    """List, unload and load engines."""
    states = {model.name: model.state for model in client.get_model_repository_index().models}
    assert (states[ENGINE], states["truncated"]) == ("READY", "UNAVAILABLE")
    client.unload_model(ENGINE)
    assert not client.is_model_ready(ENGINE)
    refused = status_of(lambda: client.infer(ENGINE, inputs()))
    assert refused == "StatusCode.FAILED_PRECONDITION", refused
    client.load_model(ENGINE)
    assert client.is_model_ready(ENGINE)
    client.infer(ENGINE, inputs())
    assert status_of(lambda: client.load_model("unknown")) == "StatusCode.NOT_FOUND"
    assert status_of(lambda: client.load_model("truncated")) == "StatusCode.FAILED_PRECONDITION"
    unsupported = status_of(client.get_system_shared_memory_status)
    assert unsupported == "StatusCode.UNIMPLEMENTED", unsupported


if __name__ == "__main__":
    with tritonclient.grpc.InferenceServerClient(sys.argv[1]) as client:
        profile(client)
        control(client)
