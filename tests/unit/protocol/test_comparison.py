"""Whether two answers to one query agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.arrays import BFLOAT16_BITS, datatype_of, to_raw
from synergai.protocol.comparison import difference

if TYPE_CHECKING:
    from synergai.protocol.arrays import Array

TOLERANCE = 0.01


def response(array: Array, name: str = "y", datatype: str = "") -> bytes:
    message = ModelInferResponse(model_name="e", raw_output_contents=[to_raw(array)])
    message.outputs.add(name=name, datatype=datatype or datatype_of(array.dtype), shape=array.shape)
    return message.SerializeToString()


def agree(one: Array, other: Array, tolerance: float = TOLERANCE) -> bool:
    found = [
        difference(response(a), response(b), tolerance) for a, b in ((one, other), (other, one))
    ]
    assert bool(found[0]) == bool(found[1]), "the order does not matter"
    return not found[0]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_floats_may_differ_in_their_last_digits(dtype: str) -> None:
    scores = np.array([0.9, 0.09, 1e-7, 0.0], dtype)
    assert agree(scores, (scores * 1.001).astype(dtype))
    assert agree(scores, scores + np.array([0, 0, 1e-6, 1e-6], dtype))
    assert not agree(scores, np.array([0.8, 0.19, 1e-7, 0.0], dtype))
    assert not agree(scores, scores[::-1])


def test_special_values_agree_with_themselves_only() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert agree(special, special.copy())
    for index in range(3):
        changed = special.copy()
        changed[index] = 1.0
        assert not agree(special, changed)
    assert not agree(np.array([np.inf]), np.array([-np.inf]))


def test_half_floats_have_at_least_the_tolerance_of_their_precision() -> None:
    one, two, three = (
        np.array([bits], "<u2").view(BFLOAT16_BITS) for bits in (0x3F80, 0x3F82, 0x4000)
    )
    texts = [
        difference(response(one, datatype="BF16"), response(x, datatype="BF16"), 1e-9)
        for x in (two, three)
    ]
    assert texts == ["", "1 of 1 elements of output 'y' differ"]


def test_quantised_tensors_may_differ_by_two_steps() -> None:
    pixels = np.array([0, 127, 255], np.uint8)
    assert agree(pixels, np.array([2, 125, 253], np.uint8))
    assert not agree(pixels, np.array([3, 127, 255], np.uint8))
    assert not agree(np.array([-128], np.int8), np.array([127], np.int8))


@pytest.mark.parametrize("dtype", ["i2", "i4", "i8", "u2", "u8", "?"])
def test_other_numbers_have_to_be_equal(dtype: str) -> None:
    assert agree(np.array([0, 1], dtype), np.array([0, 1], dtype))
    assert not agree(np.array([0, 1], dtype), np.array([0, 0], dtype))


def test_texts_have_to_be_equal() -> None:
    assert agree(np.array([b"cat", b""], object), np.array([b"cat", b""], object))
    assert not agree(np.array([b"cat"], object), np.array([b"dog"], object))


def test_names_datatypes_and_shapes_have_to_be_equal() -> None:
    array = np.ones((2, 3), np.float32)
    for other in (
        response(array, "z"),
        response(array.T),
        response(array.astype(np.float64)),
        ModelInferResponse(model_name="e").SerializeToString(),
    ):
        assert difference(response(array), other, TOLERANCE) == (
            "names, datatypes or shapes of the outputs differ"
        )


def test_other_fields_do_not_matter() -> None:
    one = ModelInferResponse.FromString(response(np.ones(3, np.float32)))
    one.id = "another"
    assert difference(one.SerializeToString(), response(np.ones(3, np.float32)), 0.0) == ""


def test_unreadable_responses_agree_with_none() -> None:
    good = response(np.ones(3, np.float32))
    short = ModelInferResponse.FromString(good)
    short.raw_output_contents[0] = b"short"
    for bad in (b"\xff\xff", short.SerializeToString()):
        assert difference(good, bad, TOLERANCE) == "a response cannot be read"


@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), max_size=8),
    st.floats(0.0, 1e-4),
)
def test_noise_below_the_tolerance_is_never_a_difference(values: list[float], noise: float) -> None:
    exact = np.array(values, np.float32)
    assert agree(exact, (exact * (1.0 - noise)).astype(np.float32))


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_any_bytes_can_be_compared(one: bytes, other: bytes) -> None:
    assert difference(one, one, TOLERANCE) == ""
    difference(one, other, TOLERANCE)
