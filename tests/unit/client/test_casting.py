"""Rules for converting values to an engine's inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from synergai.client.casting import cast_inputs, cast_value
from synergai.domain import Engine, TensorSpec
from synergai.errors import InvalidInput
from synergai.wire.arrays import DTYPES, datatype_of
from tests.engines import new_engine


def an_engine(datatype: str, *shape: int, preprocess: str = "") -> Engine:
    return new_engine("engine", (TensorSpec("x", datatype, shape),), preprocess=preprocess)


def cast(value: ArrayLike, engine: Engine) -> NDArray[np.generic]:
    return cast_inputs({"x": value}, engine)["x"]


@pytest.mark.parametrize("datatype", sorted(set(DTYPES) - {"BF16", "BYTES", "BOOL"}))
def test_list_of_small_numbers_becomes_any_numeric_datatype(datatype: str) -> None:
    array = cast([[1, 2, 3]], an_engine(datatype, -1, 3))
    assert array.dtype == DTYPES[datatype]
    assert array.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([0.5], "INT64"),
        ([256], "UINT8"),
        ([-1], "UINT64"),
        ([2**63], "INT64"),
        ([1e300], "FP32"),
        ([2**24 + 1], "FP32"),
        ([float("nan")], "INT32"),
        ([1], "BOOL"),
        ([1.5], "BOOL"),
        (["1"], "INT32"),
        ([1], "BYTES"),
        ([None], "FP32"),
        ([[1, 2], [3]], "FP32"),
        ([1.0], "BF16"),
        ([1j], "FP64"),
    ],
)
def test_conversion_that_would_lose_something_is_refused_by_the_inputs_name(
    value: ArrayLike, datatype: str
) -> None:
    with pytest.raises(InvalidInput, match="input 'x': "):
        cast(value, an_engine(datatype, -1))


def test_refusal_names_the_element_that_is_no_number() -> None:
    spec, rows = TensorSpec("x", "FP32", (1, 3)), list[list[int | str]]([[1, 2, "a"]])
    with pytest.raises(InvalidInput, match="FP32 takes numbers, not 'a'"):
        cast_value(rows, spec)


def test_text_that_no_encoding_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"half of a surrogate pair.*'a\\ud800'"):
        cast_value(["a\ud800"], TensorSpec("t", "BYTES", (-1,)))


def test_refusal_names_the_element_that_does_not_fit() -> None:
    with pytest.raises(InvalidInput, match=r"input 'x': 300 cannot be represented as UINT8"):
        cast([1, 300], an_engine("UINT8", -1))


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1))
def test_integers_arrive_unchanged_or_not_at_all(numbers: list[int]) -> None:
    try:
        array = cast(numbers, an_engine("INT64", -1))
    except InvalidInput:
        assert any(not -(2**63) <= number < 2**63 for number in numbers)
    else:
        assert array.tolist() == numbers


def test_value_without_the_batch_dimension_gains_one() -> None:
    assert cast([1, 2], an_engine("FP32", -1, 2)).shape == (1, 2)
    assert cast(3, an_engine("FP32", -1, 1)).shape == (1, 1)
    assert cast(3, an_engine("FP32")).shape == ()


def test_arrays_of_the_engines_dtype_are_passed_on_as_they_are() -> None:
    array = np.zeros(3, np.float32)
    assert cast(array, an_engine("FP32", -1)) is array


@pytest.mark.parametrize(
    ("array", "datatype"),
    [
        (np.zeros((2, 3)), "FP32"),
        (np.ones(3, np.int32), "INT64"),
        (np.ones(3, ">f4"), "FP32"),
        (np.array([True, False]), "UINT8"),
    ],
)
def test_arrays_of_another_dtype_are_converted_like_lists(
    array: NDArray[np.generic], datatype: str
) -> None:
    converted = cast(array, an_engine(datatype, *array.shape))
    assert converted.dtype == DTYPES[datatype]
    assert converted.tolist() == array.tolist()


def test_arrays_of_encoded_images_are_passed_on_where_the_engine_decodes_them() -> None:
    images = np.array([b"\xff\xd8", b"\x89PNG"], object)
    engine = an_engine("FP32", -1, 224, 224, 3, preprocess="imagenet")
    assert cast(images, engine) is images


def test_bytes_are_an_encoded_image_where_the_engine_decodes_them() -> None:
    engine = an_engine("FP32", -1, 224, 224, 3, preprocess="imagenet")
    assert cast(b"\xff\xd8", engine).tolist() == [b"\xff\xd8"]
    assert cast([b"\xff\xd8", b"\xff\xd8"], engine).shape == (2,)


def test_unknown_input_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(InvalidInput, match="no input 'y'; its inputs are x"):
        cast_inputs({"y": [1]}, an_engine("FP32", -1))


def test_bit_patterns_of_bfloat16_are_sent_as_such() -> None:
    spec = TensorSpec("x", "BF16", (-1, 2))
    cast = cast_value(np.array([1, 2], "<u2"), spec)
    assert (datatype_of(cast.dtype), cast.tolist()) == ("BF16", [[1, 2]])
    with pytest.raises(InvalidInput, match="BF16 inputs must be arrays of bfloat16"):
        cast_value(np.array([1.0, 2.0]), spec)
