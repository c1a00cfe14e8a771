"""What every peer serves, in its environment: an ONNX file in ONNX Runtime on one thread."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime


class OnnxModel:
    """A session.

    Attributes:
        inputs: names and shapes of the input tensors, all FP32; -1 where any size will do.
        outputs: the same of the output tensors.
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
        """Arrays by name, in and out."""
        outputs = self._session.run(None, values)
        return dict(zip(self.outputs, outputs, strict=True))


def _shapes(tensors: Any) -> dict[str, list[int]]:
    return {
        tensor.name: [size if isinstance(size, int) else -1 for size in tensor.shape]
        for tensor in tensors
    }


@dataclass(frozen=True)
class Asked:
    """What a ``serve_*`` is told.

    Attributes:
        models: model files by engine.
        port: where to serve gRPC on loopback.
        scratch: a folder for whatever the server writes.
    """

    models: dict[str, str]
    port: int
    scratch: Path


def asked() -> Asked:
    """Read the command line, ``PORT SCRATCH ENGINE=FILE…``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("models", nargs="+")
    arguments = parser.parse_args()
    models = dict(model.split("=", 1) for model in arguments.models)
    return Asked(models, arguments.port, arguments.scratch)
