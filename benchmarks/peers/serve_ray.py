"""Run Ray Serve, its gRPC proxy with the servicer of the Open Inference Protocol."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import serve
from ray.serve.config import gRPCOptions

from benchmarks.peers.onnx_model import OnnxModel, asked
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICER = "synergai.oip.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class OnnxInRay:
    """ONNX files as one deployment; the proxy calls the method with the name of the RPC."""

    def __init__(self, models: dict[str, str]) -> None:
        self._models = {engine: OnnxModel(file) for engine, file in models.items()}

    async def ModelInfer(self, request: oip.ModelInferRequest) -> oip.ModelInferResponse:  # noqa: N802  # the protocol's name
        """Answer one request, with tensors as raw bytes."""
        raw = zip(request.inputs, request.raw_input_contents, strict=True)
        values: dict[str, Any] = {
            tensor.name: np.frombuffer(data, np.float32).reshape(tensor.shape)
            for tensor, data in raw
        }
        response = oip.ModelInferResponse(model_name=request.model_name, id=request.id)
        for name, array in self._models[request.model_name].run(values).items():
            response.outputs.add(name=name, datatype="FP32", shape=array.shape)
            response.raw_output_contents.append(array.tobytes())
        return response

    async def ModelStreamInfer(  # noqa: N802  # the protocol's name
        self, requests: AsyncIterator[oip.ModelInferRequest]
    ) -> AsyncIterator[oip.ModelStreamInferResponse]:
        """Answer each request of a stream."""
        async for request in requests:
            answer = await self.ModelInfer(request)
            yield oip.ModelStreamInferResponse(infer_response=answer)


def main() -> None:
    """Start a Ray of our own and serve until somebody ends us."""
    task = asked()
    # Its sockets need short paths, so that it is left to keep them where it does.
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": task.port + 1},
        grpc_options=gRPCOptions(port=task.port, grpc_servicer_functions=[SERVICER]),
    )
    deployment = serve.deployment(num_replicas=1, max_ongoing_requests=64)(OnnxInRay)
    serve.run(deployment.bind(task.models))
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
