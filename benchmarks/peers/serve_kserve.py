"""Run KServe's model server."""

from __future__ import annotations

from typing import Any

import kserve

from benchmarks.peers.onnx_model import OnnxModel, parse_arguments


class OnnxInKserve(kserve.Model):  # type: ignore[misc]  # kserve is only in the peer's environment
    """An ONNX file as a custom model."""

    def __init__(self, engine: str, file: str) -> None:
        super().__init__(engine)
        self._model = OnnxModel(file)
        self.ready = True

    async def predict(self, payload: Any, *_: Any, **__: Any) -> kserve.InferResponse:
        """Run one request; return tensors as raw bytes."""
        arrays = self._model.run({tensor.name: tensor.as_numpy() for tensor in payload.inputs})
        outputs = []
        for name, array in arrays.items():
            output = kserve.InferOutput(name=name, shape=list(array.shape), datatype="FP32")
            output.set_data_from_numpy(array, binary_data=True)
            outputs.append(output)
        return kserve.InferResponse(
            response_id=payload.id,
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=True,
        )


def main() -> None:
    """Serve gRPC, and HTTP on the next port, on all addresses, as KServe requires."""
    arguments = parse_arguments()
    models = [OnnxInKserve(engine, file) for engine, file in arguments.models.items()]
    server = kserve.ModelServer(http_port=arguments.port + 1, grpc_port=arguments.port, workers=1)
    server.start(models)


if __name__ == "__main__":
    main()
