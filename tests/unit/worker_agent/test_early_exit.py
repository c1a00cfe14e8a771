"""Queries leave an engine behind a stage that is sure enough of their class."""

import numpy as np
import pytest

from synergai.domain import Engine, EngineName, Exit, TensorSpec
from synergai.errors import EngineUnusable
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.wire.validation import DROP, EXIT, LEAVE, STAY
from worker_agent.host.processing import EarlyExit, check_exit

ANSWER = TensorSpec("probabilities", "FP32", (-1, 3))
TENSOR = TensorSpec("cut", "FP32", (-1, 8))


def stage(*outputs: TensorSpec) -> Engine:
    exit_ = Exit(output="probabilities", threshold=0.75)
    return Engine(
        name=EngineName("net.s0-4"),
        version="1",
        backend="onnxruntime",
        inputs=(TENSOR,),
        outputs=outputs,
        exit=exit_,
    )


def request(asked: str = "") -> ModelInferRequest:
    message = ModelInferRequest()
    if asked:
        message.parameters[EXIT].string_param = asked
    return message


SURE = [0.9, 0.05, 0.05]
UNSURE = [0.6, 0.3, 0.1]


@pytest.mark.parametrize(
    ("asked", "rows", "leaves"),
    [
        ("", [SURE], True),
        ("", [[0.75, 0.25, 0.0]], True),
        ("", [UNSURE], False),
        ("", [SURE, UNSURE], False),
        (STAY, [SURE], False),
        (LEAVE, [UNSURE], True),
        (DROP, [SURE], True),
    ],
)
def test_a_query_leaves_if_each_row_is_sure(
    asked: str, rows: list[list[float]], *, leaves: bool
) -> None:
    engine = stage(ANSWER, TENSOR)
    assert engine.exit is not None
    early = EarlyExit(engine.exit, engine)
    computed = {"probabilities": np.array(rows), "cut": np.zeros((len(rows), 8))}
    outputs, left_at = early.choose(request(asked), computed)
    assert left_at == ("cut" if leaves else "")
    assert [*outputs] == (["probabilities"] if leaves else ["cut"])


def test_the_tensor_is_not_computed_for_a_query_that_begins_again_with_its_inputs() -> None:
    engine = stage(ANSWER, TENSOR)
    assert engine.exit is not None
    early = EarlyExit(engine.exit, engine)
    assert early.outputs_to_compute(request()) == ["probabilities", "cut"]
    assert early.outputs_to_compute(request(DROP)) == ["probabilities"]
    assert early.choose(request(DROP), {"probabilities": np.array([UNSURE])}) == ({}, "")


@pytest.mark.parametrize(
    "outputs",
    [(TENSOR, ANSWER), (ANSWER,), (TensorSpec("probabilities", "INT64", (-1,)), TENSOR)],
)
def test_an_exit_needs_its_output_first_and_a_tensor(outputs: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(EngineUnusable, match="'probabilities', has to be its first output"):
        check_exit(stage(*outputs))
    check_exit(stage(ANSWER, TENSOR))
