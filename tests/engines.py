from typing import Any

from msgspec.structs import replace

from synergai.domain import Engine, EngineName, Exit, TensorSpec
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


def new_whole(**fields: Any) -> Engine:
    """Return ``net`` whole."""
    usual = {"name": "net", "stage_of": "", "stage_end": 0, "digest": "a" * 64}
    return new_stage(0, 9, **{**usual, **fields})


def with_exit(stage: Engine, rate: float = 0.0, accuracy: float = 0.95, **fields: Any) -> Engine:
    """Return a stage at whose end a share of the queries leaves, with the answer ``t9``."""
    exit_ = Exit(output="t9", threshold=0.9, rate=rate, accuracy=accuracy, whole_accuracy=0.96)
    outputs = (TensorSpec("t9", "FP32", (1, 4)), *stage.outputs)
    return replace(stage, exit=exit_, outputs=outputs, **fields)
