"""An ONNX file behind Triton's Python backend; copied into the model repository."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from benchmarks.peers.onnx_model import OnnxModel


class TritonPythonModel:
    """The name and the methods are what the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the file that ``config.pbtxt`` names."""
        config = json.loads(args["model_config"])
        self._model = OnnxModel(config["parameters"]["file"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        values = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        answer = self._model.run(values)
        tensors = [pb_utils.Tensor(name, array) for name, array in answer.items()]
        return pb_utils.InferenceResponse(output_tensors=tensors)
