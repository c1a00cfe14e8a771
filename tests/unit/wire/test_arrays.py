"""NumPy arrays round-trip through tensors, and invalid tensors are rejected."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from synergai.errors import InvalidInput
from synergai.oip import inference_pb2
from synergai.wire import arrays
from synergai.wire.parameters import read_parameters, set_parameter
from synergai.wire.validation import DATATYPES, TYPED_FIELDS
from tests.inference_messages import build_response, read_inputs

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
BYTES_ARRAYS = SHAPES.flatmap(lambda shape: hnp.arrays(object, shape, elements=st.binary()))


def arrays_of(datatype: str) -> st.SearchStrategy[NDArray[np.generic]]:
    if datatype == "BYTES":
        return BYTES_ARRAYS
    return hnp.arrays(arrays.DTYPES[datatype], SHAPES)


ANY_ARRAY = st.sampled_from(sorted(DATATYPES - {"BF16"})).flatmap(arrays_of)


def test_every_datatype_of_the_protocol_has_a_dtype() -> None:
    assert set(arrays.DTYPES) == DATATYPES
    assert [arrays.datatype_of(dtype) for dtype in arrays.DTYPES.values()] == list(arrays.DTYPES)


@given(st.dictionaries(st.text(), ANY_ARRAY, min_size=1, max_size=3))
def test_inputs_round_trip_through_a_request(inputs: dict[str, NDArray[np.generic]]) -> None:
    request = arrays.build_request("e", inputs)
    parsed = inference_pb2.ModelInferRequest.FromString(request.SerializeToString())
    assert_same(read_inputs(parsed), inputs)


@given(st.dictionaries(st.text(), ANY_ARRAY, max_size=3))
def test_outputs_round_trip_through_a_response(outputs: dict[str, NDArray[np.generic]]) -> None:
    response = build_response("e", outputs)
    parsed = inference_pb2.ModelInferResponse.FromString(response.SerializeToString())
    assert_same(arrays.read_outputs(parsed), outputs)


@given(st.sampled_from(sorted(TYPED_FIELDS)).flatmap(arrays_of))
def test_typed_contents_are_read(array: NDArray[np.generic]) -> None:
    response = inference_pb2.ModelInferResponse()
    datatype = arrays.datatype_of(array.dtype)
    tensor = response.outputs.add(name="y", datatype=datatype, shape=array.shape)
    getattr(tensor.contents, TYPED_FIELDS[datatype]).extend(array.ravel().tolist())
    assert_same(arrays.read_outputs(response), {"y": array})


@given(hnp.arrays(np.uint16, SHAPES))
def test_bfloat16_round_trips_as_bit_patterns(bits: NDArray[np.uint16]) -> None:
    numbers = bits.view(ml_dtypes.bfloat16)
    request = arrays.build_request(
        "e", {"numbers": numbers, "bits": bits.view(arrays.BFLOAT16_BITS)}
    )
    assert [tensor.datatype for tensor in request.inputs] == ["BF16", "BF16"]
    received = read_inputs(request)
    for array in received.values():
        np.testing.assert_array_equal(array, bits)
    again = arrays.build_request("e", received)
    assert again.raw_input_contents == request.raw_input_contents
    assert again.inputs[0].datatype == "BF16"


def test_byte_order_and_strides_of_the_caller_do_not_matter() -> None:
    plain = np.arange(6, dtype="<i4").reshape(2, 3)
    assert arrays.to_raw(plain.astype(">i4")) == arrays.to_raw(plain)
    assert arrays.to_raw(np.asfortranarray(plain)) == arrays.to_raw(plain)


def test_strings_are_sent_as_utf8() -> None:
    for given_array in (["ä", "b"], np.array(["ä", "b"], object)):
        request = arrays.build_request("e", {"x": given_array})
        assert read_inputs(request)["x"].tolist() == ["ä".encode(), b"b"]


def test_received_arrays_are_read_only_views() -> None:
    array = arrays.from_raw(bytes(8), "FP32", [2])
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_array_is_aligned_wherever_its_bytes_begin() -> None:
    data = memoryview(bytes(1) + np.arange(2, dtype="<f8").tobytes())[1:]
    array = arrays.from_raw(data, "FP64", [2])
    assert array.flags.aligned
    assert array.tolist() == [0, 1]


@given(
    st.binary(max_size=40),
    st.sampled_from([*sorted(DATATYPES), "", "FP8"]),
    st.lists(st.integers(-2, 2**40), max_size=3),
)
def test_any_bytes_are_an_array_or_rejected(data: bytes, datatype: str, shape: list[int]) -> None:
    try:
        array = arrays.from_raw(data, datatype, shape)
    except InvalidInput:
        return
    assert list(array.shape) == shape
    assert arrays.to_raw(array) == data


@pytest.mark.parametrize("value", [np.array([1j]), np.array([object()]), np.array(["2020"], "M8")])
def test_unsupported_array_is_rejected_by_name(value: NDArray[np.generic]) -> None:
    with pytest.raises(InvalidInput, match="input 'x': "):
        arrays.build_request("e", {"x": value})


def test_element_out_of_range_is_rejected() -> None:
    contents = inference_pb2.InferTensorContents(int_contents=[300])
    with pytest.raises(InvalidInput, match="out of range for INT8"):
        arrays.from_contents(contents, "INT8", [1])


def test_shape_that_no_array_can_have_is_rejected_by_name() -> None:
    response = inference_pb2.ModelInferResponse(raw_output_contents=[b""])
    response.outputs.add(name="y", datatype="FP32", shape=[0, 2**40, 2**40])
    with pytest.raises(InvalidInput, match="tensor 'y': "):
        arrays.read_outputs(response)


def test_wrong_number_of_raw_contents_is_rejected() -> None:
    response = inference_pb2.ModelInferResponse(raw_output_contents=[b"", b""])
    response.outputs.add(name="y", datatype="FP32", shape=[0])
    with pytest.raises(InvalidInput, match="2 raw contents for 1 tensors"):
        arrays.read_outputs(response)


@given(
    st.dictionaries(
        st.text(), st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    )
)
def test_parameters_round_trip(parameters: dict[str, bool | int | float | str]) -> None:
    request = arrays.build_request("e", {"x": [0]}, parameters=parameters)
    received = read_parameters(request.parameters)
    assert {name: repr(value) for name, value in received.items()} == {
        name: repr(value) for name, value in parameters.items()
    }


def test_bytes_in_a_list_keep_trailing_zeros() -> None:
    request = arrays.build_request("e", {"files": [b"a\0\0", b"\0"]})

    assert request.inputs[0].datatype == "BYTES"
    assert read_inputs(request)["files"].tolist() == [b"a\0\0", b"\0"]


def test_parameter_beyond_64_bits_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="64 bits"):
        set_parameter(inference_pb2.InferParameter(), 2**64)


def assert_same(
    received: dict[str, NDArray[np.generic]], sent: dict[str, NDArray[np.generic]]
) -> None:
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)
