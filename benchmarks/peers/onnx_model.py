"""The model that every peer serves: an ONNX file in ONNX Runtime on one thread."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime


class OnnxModel:
    """An ONNX Runtime session.

    Attributes:
        inputs: shapes of the FP32 input tensors by name; -1 for a dynamic dimension.
        outputs: shapes of the FP32 output tensors by name.
    """

    def __init__(self, file: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(file, options, providers=providers)
        self.inputs = _shapes(self._session.get_inputs())
        self.outputs = _shapes(self._session.get_outputs())

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        """Run the model; map input arrays by name to output arrays by name."""
        outputs = self._session.run(None, values)
        return dict(zip(self.outputs, outputs, strict=True))


def _shapes(tensors: Any) -> dict[str, list[int]]:
    return {
        tensor.name: [size if isinstance(size, int) else -1 for size in tensor.shape]
        for tensor in tensors
    }


@dataclass(frozen=True)
class ServeArguments:
    """Command line arguments of a ``serve_*`` module.

    Attributes:
        models: model files by engine.
        port: port of the gRPC server on loopback.
        scratch: directory for files of the server.
    """

    models: dict[str, str]
    port: int
    scratch: Path


def parse_arguments() -> ServeArguments:
    """Parse the command line, ``PORT SCRATCH ENGINE=FILE…``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    models = dict(model.split("=", 1) for model in arguments.models)
    return ServeArguments(models, arguments.port, arguments.scratch)
