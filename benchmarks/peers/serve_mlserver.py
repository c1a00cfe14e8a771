"""Run MLServer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mlserver
import numpy as np
from mlserver.codecs import NumpyCodec

from benchmarks.peers.onnx_model import OnnxModel, parse_arguments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class OnnxInMlserver(mlserver.MLModel):  # type: ignore[misc]  # only in the peer's environment
    """An ONNX file as a custom runtime."""

    async def load(self) -> bool:
        """Load the file named in the settings."""
        self._model = OnnxModel(self.settings.parameters.uri)
        return True

    async def predict(self, payload: Any) -> mlserver.types.InferenceResponse:
        """Run one request."""
        values = {
            tensor.name: NumpyCodec.decode_input(tensor).astype(np.float32, copy=False)
            for tensor in payload.inputs
        }
        outputs = [
            NumpyCodec.encode_output(name, array) for name, array in self._model.run(values).items()
        ]
        return mlserver.types.InferenceResponse(
            id=payload.id, model_name=self.name, outputs=outputs
        )

    async def predict_stream(
        self, payloads: AsyncIterator[Any]
    ) -> AsyncIterator[mlserver.types.InferenceResponse]:
        """Run each request of a stream."""
        async for payload in payloads:
            yield await self.predict(payload)


async def serve() -> None:
    """Serve gRPC, and HTTP and metrics on the next ports."""
    arguments = parse_arguments()
    settings = mlserver.Settings(
        host="127.0.0.1",
        grpc_port=arguments.port,
        http_port=arguments.port + 1,
        metrics_port=arguments.port + 2,
        environments_dir=str(arguments.scratch / "environments"),
        metrics_dir=str(arguments.scratch / "metrics"),
        # Inference in the server's own process: a pool of one would only add a hop.
        parallel_workers=0,
    )
    server = mlserver.MLServer(settings)
    models = [
        mlserver.ModelSettings(
            name=engine,
            implementation=OnnxInMlserver,
            parameters=mlserver.settings.ModelParameters(uri=file),
        )
        for engine, file in arguments.models.items()
    ]
    await server.start(models)


if __name__ == "__main__":
    asyncio.run(serve())
