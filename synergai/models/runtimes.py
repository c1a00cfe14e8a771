"""Inference runtimes that are installed, and their versions, found without importing them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Final

MODULES: Final = {
    "onnxruntime": ("onnxruntime",),
    "tensorflow": ("tensorflow",),
    "tflite": ("ai_edge_litert", "tflite_runtime"),
}
"""Alternative modules of a backend, which needs one of them."""
OPERATORS_VARIABLE: Final = "SYNERGAI_ONNX_OPERATORS"
"""Environment variable with ONNX Runtime's libraries of custom operators, separated by colons."""


@cache
def runtime_version(backend: str) -> str:
    """Return a backend's runtime and its version, such as ``onnxruntime 1.31.1``.

    Empty if it is not installed, or not as a package.
    """
    # Deferred: it takes 3.5 MB, and most processes need no versions.
    from importlib.metadata import packages_distributions, version

    for module in MODULES.get(backend, ()):
        if find_spec(module) is not None:
            packages = sorted(set(packages_distributions().get(module, ())))
            return ", ".join(f"{package} {version(package)}" for package in packages)
    return ""
