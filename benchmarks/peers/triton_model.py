"""An ONNX file in Triton's Python backend; copied into the model repository."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from benchmarks.peers.onnx_model import OnnxModel


class TritonPythonModel:
    """Model class with the name and methods that the backend requires."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the file named in ``config.pbtxt``."""
        config = json.loads(args["model_config"])
        self._model = OnnxModel(config["parameters"]["file"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run each request."""
        return [self._run(request) for request in requests]

    def _run(self, request: Any) -> Any:
        values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        arrays = self._model.run(values)
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)
