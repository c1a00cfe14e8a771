from typing import Any

from synergai.domain import Engine, EngineName, TensorSpec

Tensors = tuple[TensorSpec, ...]


def new_engine(name: str, inputs: Tensors = (), outputs: Tensors = (), **fields: Any) -> Engine:
    """Return the description of version 1 of an engine."""
    return Engine(
        **{
            "name": EngineName(name),
            "version": "1",
            "backend": "test",
            "inputs": inputs,
            "outputs": outputs,
            **fields,
        }
    )
