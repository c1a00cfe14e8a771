from typing import Any

from synergai.domain import Engine, EngineName, TensorSpec
from synergai.names import stage_name

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


def new_stage(first: int, last: int, **fields: Any) -> Engine:
    """Return a stage of ``net``, which ends at cut 9; its tensors have the names of its cuts."""
    tensors = ((TensorSpec(f"t{cut}", "FP32", (1, 4)),) for cut in (first, last))
    usual: dict[str, Any] = dict(zip(("inputs", "outputs"), tensors, strict=True))
    usual |= {"name": stage_name("net", first, last), "stage_of": "a" * 64, "stage_end": 9}
    return new_engine(**{**usual, **fields})
