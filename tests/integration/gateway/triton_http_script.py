"""An unmodified tritonclient over HTTP against the gateway whose HTTP address is `argv[1]`.

It runs in a process of its own: gevent replaces parts of the standard library.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import tritonclient.http
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

VALUES = np.arange(5, dtype=np.float32)


def inputs(values: np.ndarray = VALUES, *, binary: bool = True) -> list[InferInput]:
    tensor = tritonclient.http.InferInput("x", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    return [tensor]


def failure(call: Callable[[], object]) -> InferenceServerException:
    try:
        call()
    except InferenceServerException as failed:
        return failed
    raise AssertionError(call)


def check_status(status: int, failed: InferenceServerException) -> None:
    assert failed.status() == str(status), failed
    assert "an exception occurred in the client" not in failed.message(), failed


def describe(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("echo", "2")
    assert not client.is_model_ready("absent")
    metadata = client.get_server_metadata()
    assert metadata["name"] == "synergai"
    assert "binary_tensor_data" in metadata["extensions"]
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1]}
    assert client.get_model_metadata("echo")["inputs"] == [tensor]
    check_status(404, failure(lambda: client.get_model_metadata("absent")))


def infer(client: InferenceServerClient) -> None:
    wanted = [
        None,
        [tritonclient.http.InferRequestedOutput("y", binary_data=True)],
        [tritonclient.http.InferRequestedOutput("y", binary_data=False)],
    ]
    for binary in (True, False):
        for outputs in wanted:
            for compression in (None, "gzip", "deflate"):
                result = client.infer(
                    "echo",
                    inputs(binary=binary),
                    outputs=outputs,
                    request_id="a",
                    priority=1,
                    request_compression_algorithm=compression,
                    response_compression_algorithm=compression,
                )
                assert result.get_response()["id"] == "a"
                np.testing.assert_array_equal(result.as_numpy("y"), VALUES)
    large = np.arange(1_000_000, dtype=np.float32)
    np.testing.assert_array_equal(client.infer("echo", inputs(large)).as_numpy("y"), large)
    none = np.zeros(0, np.float32)
    np.testing.assert_array_equal(client.infer("echo", inputs(none)).as_numpy("y"), none)
    asks = {"synergai_timings": True, "synergai_tenant": "lab"}
    told = client.infer("echo", inputs(), parameters=asks).get_response()["parameters"]
    assert told["synergai_worker"] == "w1"
    pending = [client.async_infer("echo", inputs()) for _ in range(20)]
    for each in pending:
        np.testing.assert_array_equal(each.get_result(timeout=30).as_numpy("y"), VALUES)


def fail(client: InferenceServerClient) -> None:
    check_status(404, failure(lambda: client.infer("absent", inputs())))
    check_status(501, failure(lambda: client.infer("echo", inputs(), sequence_id=7)))
    for options in ({"timeout": 200_000}, {"headers": {"synergai-timeout-ms": "200"}}):
        began = time.monotonic()
        late = options  # binds the loop's variable
        check_status(504, failure(lambda: client.infer("held", inputs(), **late)))  # noqa: B023 - called at once
        assert time.monotonic() - began < 10
    for call in (
        client.get_system_shared_memory_status,
        client.get_trace_settings,
        client.get_log_settings,
    ):
        check_status(501, failure(call))


def control(client: InferenceServerClient) -> None:
    config = client.get_model_config("echo")
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
    client.load_model("echo")
    index = client.get_model_repository_index()
    assert {(m["name"], m["state"]) for m in index} == {("echo", "READY"), ("held", "READY")}
    client.unload_model("echo")
    assert not client.is_model_ready("echo")
    check_status(409, failure(lambda: client.infer("echo", inputs())))
    client.load_model("echo")
    assert client.is_model_ready("echo")
    check_status(404, failure(lambda: client.load_model("absent")))
    check_status(501, failure(lambda: client.load_model("echo", config="{}")))
    (statistics,) = client.get_inference_statistics("echo")["model_stats"]
    assert statistics["inference_stats"]["success"]["count"] == statistics["inference_count"] > 0
    everything = client.get_inference_statistics()["model_stats"]
    assert {each["name"] for each in everything} == {"echo", "held"}


if __name__ == "__main__":
    with tritonclient.http.InferenceServerClient(sys.argv[1], concurrency=4) as triton:
        describe(triton)
        infer(triton)
        fail(triton)
        control(triton)
