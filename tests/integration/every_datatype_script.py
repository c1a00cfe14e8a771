"""An unmodified tritonclient that sends every datatype, raw and typed, to the gateway at argv[1].

It runs in its own process: its stubs and ours register the same protobuf package.
"""

from __future__ import annotations

import sys
from typing import TypeAlias

import grpc
import numpy as np
import tritonclient.grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

Array: TypeAlias = "NDArray[np.generic]"

TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def values(datatype: str, batch: int) -> Array:
    if datatype == "BYTES":
        return np.array([[b"", f"Zürich {i}".encode()] for i in range(batch)], dtype=np.object_)
    return (np.arange(2 * batch) % 2).astype(triton_to_np_dtype(datatype)).reshape(batch, 2)


def inputs_of(sent: dict[str, Array]) -> list[tritonclient.grpc.InferInput]:
    inputs = []
    for datatype, array in sent.items():
        tensor = tritonclient.grpc.InferInput(f"in_{datatype}", array.shape, datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def check_raw(client: tritonclient.grpc.InferenceServerClient, engine: str, batch: int) -> None:
    """Raw contents both ways, of all that the engine's metadata list."""
    metadata = client.get_model_metadata(engine)
    datatypes = [tensor.datatype for tensor in metadata.inputs]
    assert all(list(tensor.shape) == [-1, 2] for tensor in metadata.inputs)
    sent = {datatype: values(datatype, batch) for datatype in datatypes}
    result = client.infer(engine, inputs_of(sent), model_version="1")
    assert [o.name for o in result.get_response().outputs] == [f"out_{name}" for name in sent]
    for datatype, array in sent.items():
        np.testing.assert_array_equal(result.as_numpy(f"out_{datatype}"), array)
        assert result.get_output(f"out_{datatype}").datatype == datatype


def check_requested_outputs(client: tritonclient.grpc.InferenceServerClient) -> None:
    sent = {datatype: values(datatype, 1) for datatype in TYPED}
    names = ["out_INT64", "out_BYTES"]
    wanted = [tritonclient.grpc.InferRequestedOutput(name) for name in names]
    asks = {"synergai_timings": True}
    result = client.infer("typed", inputs_of(sent), outputs=wanted, parameters=asks)
    assert [output.name for output in result.get_response().outputs] == names
    np.testing.assert_array_equal(result.as_numpy("out_INT64"), sent["INT64"])
    told = result.get_response().parameters
    parts = {"queue", "transfer", "preprocess", "compute", "postprocess", "estimated"}
    assert {f"synergai_{part}_us" for part in parts} < set(told), told
    assert told["synergai_worker"].string_param == "w1"


def check_typed(address: str) -> None:
    """Typed contents both ways."""
    request = service_pb2.ModelInferRequest(model_name="typed")
    request.parameters["binary_data_output"].bool_param = False
    sent = {datatype: values(datatype, 1).reshape(-1).tolist() for datatype in TYPED}
    for datatype, field in TYPED.items():
        tensor = request.inputs.add(name=f"in_{datatype}", datatype=datatype, shape=[1, 2])
        getattr(tensor.contents, field).extend(sent[datatype])
    with grpc.insecure_channel(address) as channel:
        response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert not response.raw_output_contents
    for output in response.outputs:
        got = list(getattr(output.contents, TYPED[output.datatype]))
        assert got == sent[output.datatype], output


if __name__ == "__main__":
    with tritonclient.grpc.InferenceServerClient(sys.argv[1]) as triton:
        check_raw(triton, "typed", 1)
        check_raw(triton, "typed", 3)
        check_raw(triton, "half", 2)
        check_requested_outputs(triton)
    check_typed(sys.argv[1])
