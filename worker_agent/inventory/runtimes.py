"""Inference runtimes that are installed, found without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

_MODULES: Final = {
    "onnxruntime": ("onnxruntime",),
    "tensorflow": ("tensorflow",),
    "tflite": ("ai_edge_litert", "tflite_runtime"),
}
"""Modules of which a backend needs one."""
_BUILT_IN: Final = "emulated"


def installed_backends() -> frozenset[str]:
    """Return the names of the project's own backends whose runtime is installed."""
    return frozenset(
        {_BUILT_IN} | {name for name, modules in _MODULES.items() if any(map(find_spec, modules))}
    )
