"""Test of KServe's unmodified inference client against the gateway at the address `argv[1]`.

It runs in a separate environment: KServe needs an older protobuf, and its stubs register the
same protobuf package as SynergAI's.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferOutput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

if TYPE_CHECKING:
    from collections.abc import Awaitable

ENGINE = "onnx_identity"
VALUES = np.arange(3, dtype=np.float32)


async def code_of(call: Awaitable[object]) -> str:
    """Return the name of the status code of a failed call; empty if it succeeds."""
    try:
        await call
    except grpc.aio.AioRpcError as failure:
        return failure.code().name
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
    control(sys.argv[1])
