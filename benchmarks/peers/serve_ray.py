"""Run Ray Serve with the servicer of the Open Inference Protocol in its gRPC proxy."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray import serve
from ray.serve.config import gRPCOptions

from benchmarks.peers.onnx_model import OnnxModel, parse_arguments
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICER = "synergai.oip.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class OnnxInRay:
    """ONNX files as one deployment; the proxy calls the method with the name of the RPC."""

    def __init__(self, models: dict[str, str]) -> None:
        self._models = {engine: OnnxModel(file) for engine, file in models.items()}

    async def ModelInfer(self, request: oip.ModelInferRequest) -> oip.ModelInferResponse:  # noqa: N802  # the protocol's name
        """Run one request; return tensors as raw bytes."""
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
        """Run each request of a stream."""
        async for request in requests:
            response = await self.ModelInfer(request)
            yield oip.ModelStreamInferResponse(infer_response=response)


def main() -> None:
    """Start a local Ray cluster and serve until terminated."""
    arguments = parse_arguments()
    # Ray keeps its files in its default directory, because its sockets need short paths.
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": arguments.port + 1},
        grpc_options=gRPCOptions(port=arguments.port, grpc_servicer_functions=[SERVICER]),
    )
    deployment = serve.deployment(num_replicas=1, max_ongoing_requests=64)(OnnxInRay)
    serve.run(deployment.bind(arguments.models))
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
