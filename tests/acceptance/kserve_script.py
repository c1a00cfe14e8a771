"""Test of KServe's unmodified clients against a gateway: gRPC at `argv[1]`, REST at `argv[2]`.

It runs in a separate environment: KServe needs an older protobuf, and its stubs register the
same protobuf package as SynergAI's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable

import grpc
import httpx
import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferOutput,
    InferRequest,
    InferResponse,
    RESTConfig,
)
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

ENGINE = "onnx_identity"
VALUES = np.arange(3, dtype=np.float32)


async def code_of(call: Awaitable[object]) -> str:
    """Return the name of the status code of a failed call; empty if it succeeds."""
    try:
        await call
    except grpc.aio.AioRpcError as failure:
        return failure.code().name
    return ""


async def http_failure(call: Awaitable[object]) -> str:
    """Return the message of a failed call; empty if it succeeds."""
    try:
        await call
    except httpx.HTTPStatusError as failure:
        return str(failure)
    return ""


async def infer(address: str) -> None:
    """Send raw and typed requests, and one to an unknown engine."""
    async with InferenceGRPCClient(address, timeout=20) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(ENGINE)
        for binary in (True, False):
            tensor = InferInput("x", [3], "FP32")
            tensor.set_data_from_numpy(VALUES, binary_data=binary)
            for parameters in ({}, {"binary_data_output": binary}):
                request = InferRequest(ENGINE, [tensor], request_id="7", parameters=parameters)
                response = await client.infer(request)
                assert response.id == "7"
                output = response.outputs[0]
                assert isinstance(output, InferOutput)
                np.testing.assert_array_equal(output.as_numpy(), VALUES)
        assert await code_of(client.infer(InferRequest("unknown", [tensor]))) == "NOT_FOUND"


async def infer_by_rest(url: str) -> None:
    """Send JSON and binary tensors, and requests that fail."""
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=20)) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, ENGINE)
        assert not await client.is_model_ready(url, "unknown")
        for binary in (True, False):
            tensor = InferInput("x", [3], "FP32")
            tensor.set_data_from_numpy(VALUES, binary_data=binary)
            for wanted in (True, False):
                parameters = {"binary_data_output": wanted, "synergai_timings": True}
                request = InferRequest(ENGINE, [tensor], request_id="7", parameters=parameters)
                response = await client.infer(url, request, model_name=ENGINE)
                assert isinstance(response, InferResponse)
                assert response.id == "7"
                assert response.parameters["synergai_worker"] == "w1"
                np.testing.assert_array_equal(response.outputs[0].as_numpy(), VALUES)
        data = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [0, 1, 2]}]}
        response = await client.infer(url, data, model_name=ENGINE)
        assert isinstance(response, InferResponse)
        np.testing.assert_array_equal(response.outputs[0].as_numpy(), VALUES)
        failure = await http_failure(client.infer(url, data, model_name="unknown"))
        assert "no worker serves engine 'unknown'" in failure, failure
    assert "404 Not Found" in failure, failure


def control(address: str) -> None:
    """Unload and load an engine with KServe's repository extension."""
    name = {"model_name": ENGINE}
    with grpc.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        unloaded = stub.RepositoryModelUnload(messages.RepositoryModelUnloadRequest(**name))
        assert (unloaded.model_name, unloaded.isUnloaded) == (ENGINE, True)
        assert not stub.ModelReady(messages.ModelReadyRequest(name=ENGINE)).ready
        loaded = stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(**name))
        assert (loaded.model_name, loaded.isLoaded) == (ENGINE, True)
        assert stub.ModelReady(messages.ModelReadyRequest(name=ENGINE)).ready


if __name__ == "__main__":
    asyncio.run(infer(sys.argv[1]))
    asyncio.run(infer_by_rest(f"http://{sys.argv[2]}"))
    control(sys.argv[1])
