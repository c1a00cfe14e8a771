"""Tensors that an agent holds between stages."""

import numpy as np
import pytest

from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.wire.limits import PROBE_BYTES
from tests.clocks import FakeClock
from worker_agent.exchange import HELD_S, LEAST_BYTES, HeldTensorStore

CONTENTS = [np.arange(size, dtype=np.float32).tobytes() for size in (8000, 2, 0)]
LIMIT = 8 * 4 * LEAST_BYTES


def a_response(contents: list[bytes] = CONTENTS) -> bytes:
    outputs = [
        ModelInferResponse.InferOutputTensor(name=f"t{number}", datatype="FP32")
        for number, _ in enumerate(contents)
    ]
    response = ModelInferResponse(model_name="m", outputs=outputs, raw_output_contents=contents)
    return response.SerializeToString()


def test_held_outputs_are_the_contents_of_the_next_request() -> None:
    held = HeldTensorStore(0)
    holding = held.hold(None, a_response())
    assert holding is not None
    response = ModelInferResponse.FromString(holding.response)
    assert [each.name for each in response.outputs] == ["t0", "t1", "t2"]
    assert not response.raw_output_contents
    request = ModelInferRequest.FromString(b"".join(held.get(holding.token) or ()))
    assert list(request.raw_input_contents) == CONTENTS
    held.drop(holding.token)
    assert held.get(holding.token) is None
    assert held.used_bytes == 0


@pytest.mark.parametrize("response", [b"", a_response([bytes(100)])], ids=["empty", "small"])
def test_small_responses_are_not_held(response: bytes) -> None:
    assert HeldTensorStore(0).hold(None, response) is None


def test_no_more_is_held_than_a_share_of_the_memory_limit() -> None:
    held = HeldTensorStore(LIMIT)
    holdings = [held.hold(None, a_response()) for _ in range(9)]
    assert [each is not None for each in holdings] == [True, True] + [False] * 7
    assert held.used_bytes <= LIMIT // 8
    first = holdings[0]
    assert first is not None
    held.drop(first.token)
    assert held.hold(None, a_response()) is not None


def test_zeros_are_held_only_as_far_as_there_is_room() -> None:
    held = HeldTensorStore(8 * PROBE_BYTES)
    for token in ("first", "second"):
        held.hold_zeros(None, token)
    assert held.get("first") == (bytes(PROBE_BYTES),)
    assert held.get("second") is None
    held.drop("first")
    assert held.used_bytes == 0


def test_tensors_are_lost_with_their_registration() -> None:
    held, mine, other = HeldTensorStore(0), object(), object()
    lost, kept = held.hold(mine, a_response()), held.hold(other, a_response())
    assert lost is not None
    assert kept is not None
    held.drop_all(mine)
    assert held.get(lost.token) is None
    assert held.get(kept.token) is not None


def test_tensors_that_the_gateway_forgot_are_dropped_after_a_while() -> None:
    clock = FakeClock()
    held = HeldTensorStore(0, clock)
    holding = held.hold(None, a_response())
    assert holding is not None
    clock.now += HELD_S
    held.drop_old()
    assert held.get(holding.token) is not None
    clock.now += 1.0
    held.drop_old()
    assert held.get(holding.token) is None
