"""Run MLServer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mlserver
import numpy as np
from mlserver.codecs import NumpyCodec

from benchmarks.peers.onnx_model import OnnxModel, asked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class OnnxInMlserver(mlserver.MLModel):  # type: ignore[misc]  # only in the peer's environment
    """An ONNX file as a custom runtime."""

    async def load(self) -> bool:
        """Load the file that the settings name."""
        self._model = OnnxModel(self.settings.parameters.uri)
        return True

    async def predict(self, payload: Any) -> mlserver.types.InferenceResponse:
        """Answer one request."""
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
        """Answer each request of a stream."""
        async for payload in payloads:
            yield await self.predict(payload)


async def serve() -> None:
    """Serve gRPC, and HTTP and metrics on the ports after it."""
    task = asked()
    settings = mlserver.Settings(
        host="127.0.0.1",
        grpc_port=task.port,
        http_port=task.port + 1,
        metrics_port=task.port + 2,
        environments_dir=str(task.scratch / "environments"),
        metrics_dir=str(task.scratch / "metrics"),
        # Inference in the server's own process: a pool of one would but add a hop.
        parallel_workers=0,
    )
    server = mlserver.MLServer(settings)
    models = [
        mlserver.ModelSettings(
            name=engine,
            implementation=OnnxInMlserver,
            parameters=mlserver.settings.ModelParameters(uri=file),
        )
        for engine, file in task.models.items()
    ]
    await server.start(models)


if __name__ == "__main__":
    asyncio.run(serve())
